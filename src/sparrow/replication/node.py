"""A replica that runs: carries out what its state machine asks for, with a store, a coordinator and connections.

1. Steps of the state machine are taken one at a time, on the event loop. What a step asks for is done before the next
   one; blocking work on the store runs in a thread meanwhile.
2. Calls of the coordinator and fetches are answered later; their results are events.
3. Time is looked at when the state machine says that something is due, not at a fixed rate: an idle replica costs
   nothing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import SparrowError
from sparrow.net.access.peer_access import PeerAccess
from sparrow.replication.acknowledgement import SendAcknowledger, send_refusal
from sparrow.replication.announcement import keep_announced
from sparrow.replication.coordination import Coordination
from sparrow.replication.coordinator import Coordinator
from sparrow.replication.copy_check import CopyCheck
from sparrow.replication.core.fetch import Chunk, Fetch, FetchAnswer, Rejected
from sparrow.replication.core.leader import LIVE_MS
from sparrow.replication.core.options import ReplicaOptions
from sparrow.replication.core.output import Output
from sparrow.replication.core.replica import Replica
from sparrow.replication.fetch.client import FetchClient, is_refused
from sparrow.replication.fetch.server import INLINE_BYTES, FetchServer
from sparrow.replication.identity import ReplicaIdentity, make_incarnation
from sparrow.replication.replica_disk import ReplicaDisk
from sparrow.replication.step_queue import Effects, StepEvent, StepQueue
from sparrow.settings import ReplicationPolicy
from sparrow.store.log import LogStore

log = logging.getLogger(__name__)

_MARKS_S = 0.02
"""Followers hear of a higher high watermark so soon, if no bytes carry it before."""


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


class ReplicaNode:
    """One replica of a set, with its open store."""

    def __init__(
        self,
        store: LogStore,
        identity: ReplicaIdentity,
        options: ReplicaOptions,
        coordinator: Coordinator,
        access: PeerAccess,
        *,
        policy: ReplicationPolicy = "quorum",
        acknowledge_timeout_ms: int = 2500,
    ) -> None:
        """Prepare to run. The store was opened as a follower, with `visible_after = "replicated"` for `quorum`.

        `access`: how this replica connects to the others.
        """
        self.store, self.options, self._coordinator, self._policy = store, options, coordinator, policy
        self.disk = ReplicaDisk(store, identity)
        identity = self.disk.identity
        self.replica = Replica(
            options,
            identity.incarnation,
            self.disk.position(),
            make_incarnation,
            heard_epoch=identity.heard_epoch,
            must_copy=identity.must_copy,
        )
        self.steps = StepQueue(self._take_step)
        self.steps.on_idle = self.report_log
        self.fetch_server = FetchServer(store, self.replica, self.steps)
        self._fetches = FetchClient(
            access, timeout_ms=options.fetch_timeout_ms, segment_bytes=store.settings.segment_bytes
        )
        self.copy_check = CopyCheck(store, options.set_id, options.replica_id, access)
        self._coordination = Coordination(coordinator, self.replica, self._submit_and_look, self._log_failure)
        self._acknowledger = SendAcknowledger(store, self.replica, policy, timeout_ms=acknowledge_timeout_ms)
        self._is_reporting = False
        """`report_log` runs at the end of this iteration of the loop."""
        self._marks_timer: asyncio.TimerHandle | None = None
        self._woken = asyncio.Event()
        """Set when something may be due earlier than it was."""
        self._stepped = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._answered_ms = -LIVE_MS
        self._failures = LogIntervals()
        self._loop = asyncio.get_running_loop()
        self._is_stopping = self.is_leaving = False
        self.role_changed = asyncio.Event()
        """Set when `leading_epoch` has changed."""

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Begin to follow, or to take part in elections."""
        if self._policy != "async":
            self.store.replica.when_committed = self.when_committed
        self.store._writer.on_durable = self._durable_advanced
        announcing = keep_announced(self._coordinator, self._log_failure, self._replaced)
        for work in (self._tick(), self._coordination.keep_lease(), self._coordination.watch(), announcing):
            self._spawn(work)

    async def stop(self) -> None:
        """Resign if this replica leads, and stop."""
        self._is_stopping = True
        leader = self.replica.leader
        for task in (tasks := list(self._tasks)):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.steps.stop()
        self._acknowledger.stop()
        self.store._writer.on_durable = lambda: None
        self._fail_waiting("the broker is stopping")
        if leader is not None:
            await self._coordination.resign(leader.leader_revision)
        self._fetches.close()

    @property
    def leading_epoch(self) -> int | None:
        """The epoch that this replica leads; None if it leads none, or has only been elected."""
        leader = self.replica.leader
        return leader.epoch if leader is not None and leader.is_ready else None

    @property
    def has_committed_history(self) -> bool:
        """Whether this replica leads, and everything in its log that former leaders have written is committed.

        Before, its readers do not see all that was acknowledged: its high watermark is what it heard of the former one.
        """
        leader = self.replica.leader
        if leader is None or not leader.is_ready:
            return False
        return self._policy != "quorum" or self.replica.log.high_watermark >= leader.epoch_start

    @property
    def is_leading(self) -> bool:
        """Whether this replica accepts sends."""
        return self.replica.is_leading and not self.steps.is_running

    @property
    def knows_leader(self) -> bool:
        """Whether this replica follows a leader that has answered lately."""
        return self.replica.follower is not None and _now_ms() - self._answered_ms <= LIVE_MS

    @property
    def is_leader_busy(self) -> bool:
        """Whether the leader has said that it has more pulls than it should serve."""
        return self._fetches.is_leader_busy

    def followers_with(self, end: int) -> list[int]:
        """Return the ids of the followers that are there and show everything before `end`."""
        leader = self.replica.leader
        live = leader.live_followers(_now_ms()) if leader is not None else {}
        return sorted(member for member, at in live.items() if at.high_watermark >= end)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the replica failed: %(error)r", {"error": error}, exc_info=error)

    def _replaced(self, address: str) -> None:
        why = f"another process runs as replica {self.options.replica_id}, at {address}: stop one of the two"
        self.steps.submit(lambda _: self.replica.stop(why))

    def _log_failure(self, cause: str, text: str) -> None:
        if self._failures.is_due(cause):
            log.warning("%(text)s", {"text": text})

    # -- steps --------------------------------------------------------------------------------------------------------

    async def step(self, event: StepEvent) -> None:
        """Report an event to the state machine, and return when everything that it asks for is done."""
        await self.steps.step(event)
        self._woken.set()

    async def until(self, is_true: Callable[[], bool]) -> None:
        """Wait until a condition of the state machine holds."""
        while not is_true():
            await self._stepped.wait()

    def _submit_and_look(self, event: StepEvent) -> None:
        """Report an event after which something may be due earlier."""
        self.steps.submit(event)
        self._woken.set()

    async def _tick(self) -> None:
        while True:
            now_ms = _now_ms()
            timer = self._loop.call_later(max(0, self.replica.due_ms(now_ms) - now_ms) / 1000, self._woken.set)
            await self._woken.wait()
            timer.cancel()
            self._woken.clear()
            await self.steps.step(self._look)

    def _look(self, now_ms: int) -> Output:
        """Do what is due, with what the store has become."""
        failure = self.store.replica.failure
        if failure is not None and not self.replica.is_stopped:
            return self.replica.disk_failed(str(failure))
        if self.copy_check.is_due(self.replica.log.high_watermark) and self.replica.snapshot is not None:
            addresses = self.replica.snapshot.addresses
            others = {number: address for number, address in addresses.items() if number != self.options.replica_id}
            self._spawn(self.copy_check.run(others))
        self.replica.set_full(self.store.replica.is_full)
        self.replica.deleted(int(self.store.first))
        return self.replica.tick(now_ms)

    # -- sends --------------------------------------------------------------------------------------------------------

    def when_committed(self, end: int) -> asyncio.Future[None]:
        """Return a future that is done once the policy is met for everything before `end`.

        It fails after a time limit, and when leadership is lost.
        """
        if not self._is_reporting:  # once for all sends of this iteration
            self._is_reporting = True
            self._loop.call_soon(self.report_log)
        return self._acknowledger.wait(end, _now_ms())

    def report_log(self) -> None:
        """Tell the state machine what the store has written and flushed. Cheap; call it after appends."""
        self._is_reporting = False
        self._acknowledger.close_group()
        if self.steps.is_running:
            return  # the end of the step reports it
        if self.replica.leader is not None and self.replica.leader.is_ready:
            written = int(self.store.written)
            safe_end = self.disk.safe_end(written)
            position = self.replica.log
            if written == position.end and safe_end <= position.safe_end:
                return
            output = self.replica.appended(written, max(safe_end, position.safe_end))
        elif self.replica.follower is not None and self.disk.is_flushed:
            safe_end = self.disk.safe_end(self.replica.log.end)
            if safe_end <= self.replica.log.safe_end:
                return
            output = self.replica.flushed(safe_end)
        else:
            return
        self._carry_out_quickly(output)

    def _tell_marks(self) -> None:
        self._marks_timer = None
        self._woken.set()

    def _durable_advanced(self) -> None:
        if not self._is_stopping:
            self._loop.call_soon_threadsafe(self.report_log)

    def _fail_waiting(self, why: str) -> None:
        self._acknowledger.fail(why)
        self.fetch_server.answer_all(why)

    # -- effects ------------------------------------------------------------------------------------------------------

    def _take_step(self, event: StepEvent, body: bytes | memoryview) -> Effects | None:
        """Take a step, and do what it asks for; return what blocks, and is still to be done."""
        output = event(_now_ms())
        if output.step_down is not None:
            self._stop_leading(output, output.step_down)
        if output.blocks or len(body) > INLINE_BYTES:
            return self._carry_out(output, body)
        chunk = output.append
        if chunk is not None:
            self._fetch_ahead(output)
            try:
                output = self._stored(self.disk.append(chunk, body))
            except (SparrowError, OSError) as error:
                self._not_stored(chunk, error)
            if output.blocks:
                return self._carry_out(output)
        self._carry_out_quickly(output)
        return None

    def _stop_leading(self, output: Output, why: str) -> None:
        log.warning("replica %(id)s steps down: %(why)s", {"id": self.options.replica_id, "why": why})
        self.store.replica.follow()
        self.role_changed.set()
        self._fail_waiting(why)
        if self.store.written > self.replica.log.end:
            output.fetch = self.replica.found_tail(int(self.store.written), _now_ms()).fetch

    async def _carry_out(self, output: Output, body: bytes | memoryview = b"") -> None:
        """Do what a step asks for, in the order of its fields, except the end of a leadership."""
        if output.start_epoch is not None:
            await self._start_epoch(output.start_epoch, output.heard_epoch)
            output.heard_epoch = None
        try:
            await self.disk.write(output, self.replica.incarnation, self._log_failure)
        except (SparrowError, OSError) as error:
            # The state machine counts on it, and its next steps would be about another log than there is.
            await self._carry_out(self.replica.disk_failed(f"the replica cannot write its disk: {error}"))
            return
        if output.restart_at is not None:
            self.copy_check.restart_at(output.restart_at)
        chunk = output.append
        if chunk is not None:
            self._fetch_ahead(output)
            try:
                end = await asyncio.to_thread(self.disk.append, chunk, body)
            except (SparrowError, OSError) as error:
                self._not_stored(chunk, error)
            else:
                await self._carry_out(self._stored(end))
        if output.delete_before is not None:
            await asyncio.to_thread(self.disk.delete_before, output.delete_before)
        self._carry_out_quickly(output)

    async def _start_epoch(self, epoch: int, heard_epoch: int | None) -> None:
        """Write the record of the epoch that this replica leads from now on; resign if that is not possible."""
        try:
            start, end = await asyncio.to_thread(self.disk.start_epoch, epoch, heard_epoch)
        except (SparrowError, OSError) as error:
            why = f"epoch {epoch} cannot begin: {error}"
            log.warning("replica %(id)s steps down: %(why)s", {"id": self.options.replica_id, "why": why})
            self.store.replica.follow()
            end = min(int(self.store.written), self.replica.log.end)
            self._carry_out_quickly(self.replica.epoch_not_started(why, end, _now_ms()))
            # Nothing of it may stay: it would be part of the epoch before.
            await self._carry_out(Output(heard_epoch=heard_epoch, truncate_to=end))
            return
        self._carry_out_quickly(self.replica.epoch_started(epoch, start, end))
        self.role_changed.set()

    def _carry_out_quickly(self, output: Output) -> None:
        """Do what blocks nothing: marks, answers, and the start of fetches and calls."""
        if output.committed is not None:
            self.store.replica.commit_to(output.committed)
            if self.replica.leader is not None and self._marks_timer is None:
                self._marks_timer = self._loop.call_later(_MARKS_S, self._tell_marks)
        leader = self.replica.leader
        if leader is not None and leader.is_ready:
            refusal = send_refusal(leader, self._policy, has_lease=self._coordination.has_lease)
            self.store.replica.set_refusal(refusal)
            self._acknowledger.advance(_now_ms())
        for replica_id, answer in output.replies:
            self.fetch_server.answer(replica_id, answer)
        if output.fetch is not None and not self.is_leaving:
            self._fetch(output.fetch[1])
        if output.acknowledge is not None:
            self._fetches.acknowledge(self.replica.leader_address, output.acknowledge[1])
        for call in output.calls:
            self._spawn(self._coordination.call(call))
        if output.notice is not None:
            self._log_failure("notice", output.notice)
        if output.alarm is not None:
            log.critical("%(alarm)s; the replica stops until an operator decides", {"alarm": output.alarm})
        self._stepped.set()  # wakes those who wait now
        self._stepped.clear()

    def _stored(self, end: int) -> Output:
        """Report that a chunk is written: the last whole record ends at `end`."""
        return self.replica.stored(end, self.disk.safe_end(end), self.store.replica.complete_end(end), _now_ms())

    def _not_stored(self, chunk: Chunk, error: Exception) -> None:
        self._log_failure("append", f"bytes of the leader's log from {chunk.offset} on are not written: {error}")
        self.store.replica.discard_incomplete()
        self.replica.not_stored(int(self.store.written), _now_ms())
        self._woken.set()

    # -- fetches ------------------------------------------------------------------------------------------------------

    def _fetch_ahead(self, output: Output) -> None:
        if output.fetch_ahead is not None:
            self._fetch(output.fetch_ahead[1])

    def _fetch(self, fetch: Fetch) -> None:
        address = self.replica.leader_address
        self._fetches.fetch(address, fetch, partial(self._fetched, fetch.epoch, address))

    def _fetched(self, epoch: int, address: str, answer: FetchAnswer | SparrowError, body: bytes) -> None:
        if self._is_stopping:
            return
        if isinstance(answer, SparrowError):
            self._log_failure("fetch", f"the fetch from the leader at {address} failed: {answer}")
            # Without a quorum, only the end of the lease tells that the leader acknowledges nothing more.
            is_gone = self._policy == "quorum" and is_refused(answer)
            self._submit_and_look(lambda now_ms: self.replica.fetch_failed(epoch, now_ms, is_refused=is_gone))
            return
        if isinstance(answer, Chunk) and answer.length:
            self.copy_check.begin(answer.end)
        self._answered_ms = _now_ms()
        self.steps.submit(lambda now_ms: self.replica.answered(answer, now_ms), body)
        if isinstance(answer, Rejected):
            self._woken.set()
