"""A replica set in one thread: the real state machines, and a simulated network, disks, coordinator and clients.

One seed decides everything. After each step the simulation compares what happened with what the protocol promises:

1. *one writer an epoch*: one life of one replica appends in an epoch.
2. *same epoch, same bytes*: whatever two replicas hold of an epoch is equal.
3. *one history*: what any replica shows as committed is what every other one shows there.
4. *nothing lost*: whoever begins to lead has everything that was ever committed; every acknowledged write is in it.
5. *no alarm*: no replica finds that its committed bytes differ from its leader's.
6. *it goes on*: when all faults are over, one replica leads, accepts writes, and all others catch up.
7. *whole groups*: no high watermark lies inside an atomic append, and a leader has none without its end.
8. *state survives retention*: whoever deletes old records still has the state that they held.

A log cell stands for a record: one offset each, holding the epoch that wrote it and a value.
"""

from __future__ import annotations

import argparse
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sparrow.replication.core.epochs import EpochHistory
from sparrow.replication.core.fetch import Chunk, Fetch, FetchAnswer, SafeEnd
from sparrow.replication.core.log_position import LogPosition
from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.core.options import ReplicaOptions
from sparrow.replication.core.output import Change, CoordinatorCall, Elect, Output, Read, Resign
from sparrow.replication.core.replica import Replica
from sparrow.replication.core.snapshot import LeaderKey, Snapshot

SET_ID = "set-1"
TTL_MS = 2000
TICK_MS = 40
FAULT_KINDS = (
    *("kill", "kill", "power", "start", "start", "start", "pause", "resume", "resume"),
    *("cut", "mend", "mend", "disk", "leader", "damage", "fsync", "full", "space", "clock"),
)

CHUNK_CELLS_MAX = (1000, 1000, 3, 1000, 1)
"""How many cells an answer holds at most: a small answer may end inside an atomic append."""

Cell = tuple[int, int]
"""The epoch that wrote a record, and its value; negative values are epoch records."""


class BrokenPromise(AssertionError):
    """The simulation found a violation."""


@dataclass
class Faults:
    """How often what goes wrong, in one run."""

    drop: float = 0.02
    duplicate: float = 0.02
    delay_ms: int = 30
    call_lost: float = 0.03
    answer_lost: float = 0.05
    lease_early: float = 0.02
    watch_lost: float = 0.2
    flush_ms: int = 20
    unlucky: float = 0.0
    """How often the leader dies just after something has changed."""

    @classmethod
    def drawn(cls, rng: random.Random) -> Faults:
        """Return faults between none and frequent."""
        much = rng.choice((0.0, 1.0, 1.0, 3.0))
        return cls(
            0.02 * much,
            0.02 * much,
            rng.choice((2, 30, 200)),
            0.03 * much,
            0.05 * much,
            0.02 * much,
            0.2 * much,
            rng.choice((1, 20, 300)),
            rng.choice((0.0, 0.1, 0.3)),
        )


@dataclass
class Disk:
    """What survives a process: cells, and how many of them survive the loss of power."""

    incarnation: str
    cells: list[Cell] = field(default_factory=list)
    first: int = 0
    synced: int = 0
    high_watermark: int = 0
    heard_epoch: int = 0
    is_damaged: bool = False
    is_full: bool = False
    is_nearly_full: bool = False
    """A leader refuses sends. There is space for the record of an epoch, and for what a follower copies."""


class SimulatedReplica:
    """One replica: its disk, and its process while it runs."""

    def __init__(self, replica_id: int, incarnation: str) -> None:
        self.replica_id = replica_id
        self.disk = Disk(incarnation)
        self.core: Replica | None = None
        self.life = 0
        self.clock_ms = 0
        """How far its clock is ahead."""
        self.rewritten: tuple[int, int] | None = None
        """Where retention lets the log start, and the end of the state that it has appended again for that."""
        self.is_paused = False
        self.waiting: list[tuple[int, int]] = []
        """End and value of the writes that wait to be committed."""
        self.incomplete: list[Cell] = []
        """Received cells that are the beginning of a record."""
        self.checked = 0
        """How many committed cells were compared."""


class Coordinator:
    """One linearizable map with a lease that may end early or late."""

    def __init__(self, state: ReplicaSetState) -> None:
        self.revision = 1
        self.state, self.state_revision = state, 1
        self.leader: LeaderKey | None = None
        self.lease_until = 0
        self.addresses: dict[int, str] = {}
        """Of the replicas that run."""

    def snapshot(self) -> Snapshot:
        return Snapshot(
            revision=self.revision,
            state=self.state,
            state_revision=self.state_revision,
            leader=self.leader,
            addresses=dict(self.addresses),
        )

    def apply(self, call: CoordinatorCall, replica_id: int, now: int) -> bool:
        """Carry a call out, and return whether anything changed."""
        holder = self.leader.create_revision if self.leader is not None else 0
        if isinstance(call, Resign):
            if holder != call.leader_revision:
                return False
            self.leader = None
            self.revision += 1
            return True
        if not isinstance(call, Elect | Change):
            return False
        if call.state_revision != self.state_revision or call.leader_revision != holder:
            return False
        self.revision += 1
        self.state, self.state_revision = call.state, self.revision
        if isinstance(call, Elect):
            self.leader = LeaderKey(
                replica_id=replica_id,
                incarnation=call.state.in_sync[replica_id],
                epoch=call.state.epoch,
                change_id=call.state.change_id,
                create_revision=self.revision,
            )
            self.lease_until = now + TTL_MS
        return True


class Simulation:
    """A replica set under faults."""

    def __init__(
        self, seed: int, *, replicas: int = 3, minimum: int | None = None, flushes: bool | None = None
    ) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.flushes = self.rng.random() < 0.7 if flushes is None else flushes
        self.faults = Faults.drawn(self.rng)
        self.chunk_cells_max = CHUNK_CELLS_MAX[seed % len(CHUNK_CELLS_MAX)]
        self.now = 0
        self.is_mixed = True
        """Some writes are atomic appends, and some change the state."""
        self.steps = 0
        self.transcript: list[str] = []
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0
        self._ids = 0
        self._values = 0
        self.replicas = {number: SimulatedReplica(number, self.make_id()) for number in range(1, replicas + 1)}
        state = ReplicaSetState(
            set_id=SET_ID,
            members=tuple(self.replicas),
            min_in_sync=replicas // 2 + 1,
            in_sync={number: replica.disk.incarnation for number, replica in self.replicas.items()},
        )
        self.coordinator = Coordinator(state)
        self.cuts: set[tuple[int, int]] = set()
        """One-way cuts; 0 is the coordinator."""
        self.writers: dict[int, tuple[int, int]] = {}
        self.written: dict[tuple[int, int], Cell] = {}
        self.committed: list[Cell] = []
        self.groups: dict[Cell, tuple[int, int]] = {}
        """Begin and end of the atomic append that a record belongs to."""
        self.states: dict[Cell, int] = {}
        """The version of the state that a state record holds."""
        self.acknowledged: dict[int, int] = {}
        for replica in self.replicas.values():
            self.start(replica)
        self.every(TTL_MS // 4, self._expire_lease)

    # -- time ---------------------------------------------------------------------------------------------------------

    def make_id(self) -> str:
        self._ids += 1
        return f"i{self._ids}"

    def after(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (self.now + delay_ms, self._sequence, action))

    def every(self, interval_ms: int, action: Callable[[], None]) -> None:
        def repeat() -> None:
            action()
            self.after(interval_ms, repeat)

        self.after(interval_ms, repeat)

    def run_until(self, until_ms: int, stop: Callable[[], bool] = lambda: False) -> bool:
        """Run the events up to that time, or until `stop` says so; return what it says."""
        while self._events and self._events[0][0] <= until_ms:
            self.now, _, action = heapq.heappop(self._events)
            self.steps += 1
            action()
            if stop():
                return True
        self.now = max(self.now, until_ms)
        return stop()

    def note(self, text: str) -> None:
        self.transcript.append(f"{self.now:>7} {text}")
        if self.faults.unlucky and self.rng.random() < self.faults.unlucky:
            self.after(1 + self.rng.randrange(2 * self.faults.delay_ms), self._kill_leader)

    def _kill_leader(self) -> None:
        if not self.faults.unlucky:
            return
        for replica in self.replicas.values():
            if replica.core is not None and replica.core.leader is not None:
                self.kill(replica, loses_power=self.rng.random() < 0.3)
                self.after(1 + self.rng.randrange(5000), lambda replica=replica: replica.core or self.start(replica))
                return

    def check(self, holds: bool, promise: str) -> None:
        if not holds:
            self.note(f"BROKEN: {promise}")
            tail = "\n".join(self.transcript[-60:])
            replay = f"python -m tests.support.replica_simulation --seed {self.seed}"
            raise BrokenPromise(f"{promise}\n{replay}\n{tail}")

    # -- processes ----------------------------------------------------------------------------------------------------

    def start(self, replica: SimulatedReplica) -> None:
        """Start the process of a replica with what its disk holds."""
        disk = replica.disk
        replica.life += 1
        self.coordinator.addresses[replica.replica_id] = f"replica-{replica.replica_id}"
        replica.is_paused, replica.waiting, replica.checked, replica.rewritten = False, [], disk.first, None
        if disk.is_damaged:
            disk.incarnation = self.make_id()
        self._cut_group(disk)
        end = len(disk.cells)
        epochs, last = EpochHistory(), 0
        for offset in range(disk.first, end):
            if disk.cells[offset][0] != last:
                last = disk.cells[offset][0]
                epochs.begin(last, offset)
        log = LogPosition(
            disk.first,
            end,
            self._safe_end(disk),
            max(disk.first, min(disk.high_watermark, end)),
            epochs,
        )
        options = ReplicaOptions(set_id=SET_ID, replica_id=replica.replica_id, fetch_bytes_max=self.chunk_cells_max)
        replica.incomplete = []
        replica.core = Replica(
            options,
            disk.incarnation,
            log,
            self.make_id,
            heard_epoch=disk.heard_epoch,
            must_copy=disk.is_damaged,
        )
        self.note(f"replica {replica.replica_id} starts, log {disk.first}..{end}, {disk.incarnation}")
        life = replica.life
        drift = self.rng.choice((0.9, 1.0, 1.0, 1.1))

        def tick() -> None:
            if replica.life != life or replica.core is None:
                return
            if not replica.is_paused:
                replica.core.set_full(disk.is_full or disk.is_nearly_full)
                self._carry_out(replica, replica.core.tick(self.time_of(replica)))
                if self.rng.random() < 0.5:
                    self._report_log(replica)
            self.after(int(TICK_MS * drift), tick)

        def renew() -> None:
            if replica.life != life or replica.core is None:
                return
            leader = replica.core.leader
            if not replica.is_paused and leader is not None and self._reaches(replica.replica_id, 0):
                holder = self.coordinator.leader
                if holder is not None and holder.create_revision == leader.leader_revision:
                    self.coordinator.lease_until = self.now + TTL_MS
            self.after(TTL_MS // 3, renew)

        self.after(self.rng.randrange(TICK_MS), tick)
        self.after(TTL_MS // 3, renew)
        if self.flushes:
            self._flush_later(replica)

    def time_of(self, replica: SimulatedReplica) -> int:
        """Return what the monotonic clock of a replica shows."""
        return self.now + replica.clock_ms

    def _cut_group(self, disk: Disk) -> None:
        """Cut an atomic append off that has no end, as a start and an election do."""
        start = self._open_group(disk)
        if start is not None:
            del disk.cells[start:]
            disk.synced = min(disk.synced, start)

    def _open_group(self, disk: Disk) -> int | None:
        """Return where the atomic append begins that has no end yet."""
        start = self._complete_end(disk, len(disk.cells))
        return start if start < len(disk.cells) else None

    def _complete_end(self, disk: Disk, offset: int) -> int:
        """Return the offset, or the begin of the atomic append that it lies in."""
        if offset <= disk.first:
            return offset
        start, end = self.groups.get(disk.cells[offset - 1], (0, 0))
        return start if end > offset else offset

    def _safe_end(self, disk: Disk) -> int:
        return self._complete_end(disk, disk.synced if self.flushes else len(disk.cells))

    def _state_of(self, cells: list[Cell]) -> int:
        """Return the newest version of the state that records hold."""
        return max((self.states[cell] for cell in cells if cell in self.states), default=0)

    def fail_disk(self, replica: SimulatedReplica) -> None:
        """Let a sync fail: the replica stops, and restarts without what was not synced."""
        if replica.core is None:
            return
        self.note(f"replica {replica.replica_id}: a sync fails")
        output = replica.core.disk_failed("a sync failed")
        output.alarm = None
        self._carry_out(replica, output)
        incarnation = replica.core.incarnation
        self.kill(replica, loses_power=True)
        replica.disk.incarnation = incarnation

    def kill(self, replica: SimulatedReplica, *, loses_power: bool = False) -> None:
        """End a process. Without power, unsynced cells may be lost."""
        if replica.core is None:
            return
        disk = replica.disk
        if self.rng.random() < 0.7:
            disk.high_watermark = max(disk.first, replica.core.log.high_watermark)
        replica.core, replica.waiting = None, []
        replica.life += 1
        self.coordinator.addresses.pop(replica.replica_id, None)
        if loses_power:
            kept = self.rng.randint(disk.synced, len(disk.cells))
            del disk.cells[kept:]
            if not self.flushes:
                disk.incarnation = self.make_id()
        else:
            for other in self.replicas:  # the kernel closes its connections
                if other != replica.replica_id and self._reaches(replica.replica_id, other):
                    self.after(1, lambda other=other: self._break_connection(other, replica.replica_id))
        self.note(f"replica {replica.replica_id} dies{' without power' if loses_power else ''}, end {len(disk.cells)}")

    def replace_disk(self, replica: SimulatedReplica) -> None:
        """Put an empty disk in; the process must be dead."""
        assert replica.core is None
        replica.disk = Disk(self.make_id())
        self.note(f"replica {replica.replica_id} gets an empty disk")

    # -- effects ------------------------------------------------------------------------------------------------------

    def _carry_out(self, replica: SimulatedReplica, output: Output, cells: list[Cell] | None = None) -> None:
        core, disk = replica.core, replica.disk
        assert core is not None
        if output.step_down is not None:
            self.note(f"replica {replica.replica_id} steps down: {output.step_down}")
            replica.waiting.clear()
            replica.rewritten = None
            if len(disk.cells) > core.log.end:
                output.fetch = core.found_tail(len(disk.cells), self.time_of(replica)).fetch
        if output.heard_epoch is not None:
            disk.heard_epoch = output.heard_epoch
        if output.restart_at is not None:
            disk.incarnation, disk.is_damaged = core.incarnation, False
            disk.first = disk.synced = disk.high_watermark = output.restart_at
            disk.cells = [(0, 0)] * output.restart_at
            replica.checked = output.restart_at
            self.note(f"replica {replica.replica_id} starts again at {output.restart_at}, {disk.incarnation}")
        if output.truncate_to is not None:
            self.note(f"replica {replica.replica_id} cuts {len(disk.cells)} to {output.truncate_to}")
            del disk.cells[output.truncate_to :]
            disk.synced = min(disk.synced, output.truncate_to)
            replica.checked = min(replica.checked, output.truncate_to)
        if output.fetch_ahead is not None:
            self._deliver(replica.replica_id, output.fetch_ahead[0], self._receive_fetch, output.fetch_ahead[1])
        if output.append is not None:
            self._append_chunk(replica, output.append, cells or [])
        if output.start_epoch is not None:
            self._start_epoch(replica, output.start_epoch)
            return
        if output.committed is not None:
            self._check_committed(replica, output.committed)
        if output.delete_before is not None:
            self._delete(replica, output.delete_before)
            disk.synced = max(disk.synced, disk.first)  # retention makes the log durable before it deletes
        for target, answer in output.replies:
            self._reply(replica, target, answer)
        if output.fetch is not None:
            self._deliver(replica.replica_id, output.fetch[0], self._receive_fetch, output.fetch[1])
        if output.acknowledge is not None:
            self._deliver(replica.replica_id, output.acknowledge[0], self._receive_word, output.acknowledge[1])
        for call in output.calls:
            self._call(replica, call)
        self.check(output.alarm is None, f"no alarm: {output.alarm}")

    def _append_chunk(self, replica: SimulatedReplica, chunk: Chunk, cells: list[Cell]) -> None:
        disk, core = replica.disk, replica.core
        assert core is not None
        del replica.incomplete[max(0, chunk.offset - len(disk.cells)) :]  # begun by another leader
        if disk.is_full:
            replica.incomplete = []
            core.not_stored(len(disk.cells), self.time_of(replica))
            return
        self.check(len(disk.cells) + len(replica.incomplete) == chunk.offset, "bytes are appended at the end")
        for offset, cell in enumerate(cells, chunk.offset):
            self.check(cell[0] == chunk.chunk_epoch, "a chunk has one epoch")
            self.check(self.written[cell[0], offset] == cell, "same epoch, same bytes")
        # The last cells of a chunk may be the beginning of a record: they wait for its rest.
        cells = replica.incomplete + cells
        is_more = chunk.offset + chunk.length < chunk.end
        whole = len(cells) - (self.rng.randrange(3) if is_more and self.rng.random() < 0.3 else 0)
        disk.cells += cells[: max(whole, 0)]
        replica.incomplete = cells[max(whole, 0) :]
        if self.flushes:
            self._flush_later(replica)
        end = len(disk.cells)
        complete_end = self._complete_end(disk, end)
        self._carry_out(replica, core.stored(end, self._safe_end(disk), complete_end, self.time_of(replica)))

    def _delete(self, replica: SimulatedReplica, first: int) -> None:
        disk, core = replica.disk, replica.core
        assert core is not None
        before = self._state_of(disk.cells[disk.first : core.log.high_watermark])
        disk.first = first
        kept = self._state_of(disk.cells[first : core.log.high_watermark])
        self.check(kept >= before, f"state survives retention: replica {replica.replica_id} deletes before {first}")

    def _start_epoch(self, replica: SimulatedReplica, epoch: int) -> None:
        disk, core = replica.disk, replica.core
        assert core is not None
        self._cut_group(disk)
        if disk.is_full:
            self.note(f"replica {replica.replica_id} cannot lead epoch {epoch}: its disk is full")
            self._carry_out(replica, core.epoch_not_started("no space", len(disk.cells), self.time_of(replica)))
            return
        self.note(f"replica {replica.replica_id} leads epoch {epoch} from {len(disk.cells)}")
        kept = disk.cells[disk.first : len(self.committed)]
        self.check(kept == self.committed[disk.first :], "nothing lost: a new leader has all that was committed")
        self.check(
            self._state_of(disk.cells[disk.first :]) >= self._state_of(self.committed),
            "state survives retention: a new leader knows the committed state",
        )
        self._write(replica, epoch, -epoch)
        disk.synced = len(disk.cells)
        self._carry_out(replica, core.epoch_started(epoch, len(disk.cells) - 1, len(disk.cells)))

    def _write(self, replica: SimulatedReplica, epoch: int, value: int) -> None:
        writer = (replica.replica_id, replica.life)
        self.check(self.writers.setdefault(epoch, writer) == writer, f"one writer in epoch {epoch}")
        key = (epoch, len(replica.disk.cells))
        self.check(key not in self.written, "same epoch, same bytes: a place is written once")
        self.written[key] = (epoch, value)
        replica.disk.cells.append((epoch, value))

    def _check_committed(self, replica: SimulatedReplica, end: int) -> None:
        cells, committed = replica.disk.cells, self.committed
        if end > replica.disk.first:
            start, group_end = self.groups.get(cells[end - 1], (end, end))
            self.check(end >= group_end, f"whole groups: {end} is inside {start}..{group_end}")
        for offset in range(max(replica.checked, replica.disk.first), end):
            if offset < len(committed):
                self.check(committed[offset] == cells[offset], f"one history: offset {offset}")
            else:
                committed.append(cells[offset])
        replica.checked = max(replica.checked, end)
        if replica.core is not None and replica.core.leader is not None:
            while replica.waiting and replica.waiting[0][0] <= end:
                at, value = replica.waiting.pop(0)
                self.check(self.committed[at - 1][1] == value, f"nothing lost: write {value} is acknowledged")
                self.acknowledged[value] = at - 1

    def _flush_later(self, replica: SimulatedReplica) -> None:
        life, end = replica.life, len(replica.disk.cells)

        def flushed() -> None:
            core = replica.core
            if replica.life != life or core is None or replica.is_paused:
                return
            replica.disk.synced = max(replica.disk.synced, min(end, len(replica.disk.cells)))
            self._report_log(replica)

        self.after(1 + self.rng.randrange(self.faults.flush_ms), flushed)

    def _report_log(self, replica: SimulatedReplica) -> None:
        core, disk = replica.core, replica.disk
        assert core is not None
        if core.leader is not None:
            if core.leader.is_ready:
                safe_end = max(self._safe_end(disk), core.log.safe_end)
                self._carry_out(replica, core.appended(len(disk.cells), safe_end))
        elif self.flushes:
            self._carry_out(replica, core.flushed(self._safe_end(disk)))

    # -- network ------------------------------------------------------------------------------------------------------

    def _reaches(self, source: int, target: int) -> bool:
        return (source, target) not in self.cuts

    def _deliver(self, source: int, target: int, receive: Callable[..., None], *values: Any) -> None:
        copies = 1 + (self.rng.random() < self.faults.duplicate)
        for _ in range(copies):
            if self.rng.random() < self.faults.drop or not self._reaches(source, target):
                continue
            self.after(1 + self.rng.randrange(self.faults.delay_ms), lambda: receive(target, *values))

    def _running(self, replica_id: int) -> tuple[SimulatedReplica, Replica] | None:
        replica = self.replicas[replica_id]
        return None if replica.core is None or replica.is_paused else (replica, replica.core)

    def _receive_fetch(self, target: int, fetch: Fetch) -> None:
        if (running := self._running(target)) is not None:
            replica, core = running
            self._carry_out(replica, core.fetched(fetch, self.time_of(replica)))
        elif self.replicas[target].core is None and self._reaches(target, fetch.replica_id):
            self.after(1, lambda: self._refuse_connection(fetch.replica_id, fetch.epoch))

    def _break_connection(self, source: int, target: int) -> None:
        if (running := self._running(source)) is not None:
            replica, core = running
            if core.follower is not None and core.follower.leader_id == target:
                self._carry_out(replica, core.fetch_failed(core.follower.epoch, self.time_of(replica)))

    def _refuse_connection(self, source: int, epoch: int) -> None:
        if (running := self._running(source)) is not None:
            replica, core = running
            self._carry_out(replica, core.fetch_failed(epoch, self.time_of(replica), is_refused=True))

    def _receive_word(self, target: int, word: SafeEnd) -> None:
        if (running := self._running(target)) is not None:
            replica, core = running
            self._carry_out(replica, core.acknowledged(word))

    def _reply(self, replica: SimulatedReplica, target: int, answer: FetchAnswer) -> None:
        cells: list[Cell] = []
        if isinstance(answer, Chunk):
            cells = replica.disk.cells[answer.offset : answer.offset + answer.length]
        self._deliver(replica.replica_id, target, self._receive_answer, answer, cells)

    def _receive_answer(self, target: int, answer: FetchAnswer, cells: list[Cell]) -> None:
        if (running := self._running(target)) is not None:
            replica, core = running
            self._carry_out(replica, core.answered(answer, self.time_of(replica)), cells)

    # -- coordinator --------------------------------------------------------------------------------------------------

    def _call(self, replica: SimulatedReplica, call: CoordinatorCall) -> None:
        life, faults, rng = replica.life, self.faults, self.rng
        delay = 1 + rng.randrange(faults.delay_ms)

        def answer(snapshot: Snapshot | None) -> None:
            core = replica.core
            if replica.life != life or core is None or replica.is_paused:
                return
            now = self.time_of(replica)
            self._carry_out(replica, core.call_ended(now) if snapshot is None else core.observed(snapshot, now))

        def arrive() -> None:
            if rng.random() < faults.call_lost or not self._reaches(replica.replica_id, 0):
                if not isinstance(call, Read):
                    self.after(1000, lambda: answer(None))
                return
            if isinstance(call, Read):
                snapshot = self.coordinator.snapshot()
                if rng.random() >= faults.answer_lost and self._reaches(0, replica.replica_id):
                    self.after(1 + rng.randrange(faults.delay_ms), lambda: answer(snapshot))
                return
            if self.coordinator.apply(call, replica.replica_id, self.now):
                state = self.coordinator.state
                self.note(
                    f"coordinator: {type(call).__name__} of {replica.replica_id}: epoch {state.epoch}, "
                    f"in sync {state.in_sync}, eligible {state.eligible}"
                )
                self._notify()
            is_lost = rng.random() < faults.answer_lost or not self._reaches(0, replica.replica_id)
            self.after(1000 if is_lost else 1 + rng.randrange(faults.delay_ms), lambda: answer(None))

        self.after(delay, arrive)

    def _notify(self) -> None:
        snapshot = self.coordinator.snapshot()
        for replica in self.replicas.values():
            if self.rng.random() >= self.faults.watch_lost and self._reaches(0, replica.replica_id):
                self.after(1 + self.rng.randrange(self.faults.delay_ms), self._watched(replica, snapshot))

    def _watched(self, replica: SimulatedReplica, snapshot: Snapshot) -> Callable[[], None]:
        life = replica.life

        def receive() -> None:
            if replica.life == life and replica.core is not None and not replica.is_paused:
                self._carry_out(replica, replica.core.observed(snapshot, self.time_of(replica)))

        return receive

    def _expire_lease(self) -> None:
        coordinator = self.coordinator
        if coordinator.leader is None:
            return
        if self.now >= coordinator.lease_until or self.rng.random() < self.faults.lease_early:
            self.note(f"the lease of replica {coordinator.leader.replica_id} ends")
            coordinator.leader = None
            coordinator.revision += 1
            self._notify()

    # -- clients and faults -------------------------------------------------------------------------------------------

    def write(self) -> None:
        """Send a write to every replica that believes to lead."""
        for replica in self.replicas.values():
            core = replica.core
            if core is None or replica.is_paused or not core.is_leading or core.leader is None:
                continue
            if replica.disk.is_full or self._open_group(replica.disk) is not None:
                continue
            kind = self.rng.random() if self.is_mixed else 0.5
            if kind < 0.15:
                self._begin_group(replica, core.leader.epoch)
            else:
                self._append_value(replica, core.leader.epoch)
                if kind > 0.9:
                    self.states[replica.disk.cells[-1]] = 1 + max(self.states.values(), default=0)
            replica.waiting.append((len(replica.disk.cells), self._values))
            if self.flushes:
                self._flush_later(replica)
            if self.rng.random() < 0.7:  # else later, with the next one, or never
                self._report_log(replica)

    def _append_value(self, replica: SimulatedReplica, epoch: int) -> None:
        self._values += 1
        self._write(replica, epoch, self._values)

    def _begin_group(self, replica: SimulatedReplica, epoch: int) -> None:
        """Append a group of records; it may stop in the middle for a moment, or for ever when the process dies."""
        start, size, life = len(replica.disk.cells), self.rng.randint(2, 5), replica.life

        def append(count: int) -> None:
            core = replica.core
            if replica.life != life or core is None or core.leader is None or core.leader.epoch != epoch:
                return
            for _ in range(count):
                self._append_value(replica, epoch)
                self.groups[replica.disk.cells[-1]] = (start, start + size)
            if len(replica.disk.cells) == start + size and replica.waiting:
                replica.waiting[-1] = (start + size, self._values)
            if self.flushes:
                self._flush_later(replica)
            self._report_log(replica)

        at_once = self.rng.randint(1, size)
        for _ in range(at_once):
            self._append_value(replica, epoch)
            self.groups[replica.disk.cells[-1]] = (start, start + size)
        if at_once < size:
            self.after(1 + self.rng.randrange(20), lambda: append(size - at_once))

    def trim(self) -> None:
        """Let a leader delete some of its oldest records, once the state that they hold is committed again."""
        for replica in self.replicas.values():
            core, disk = replica.core, replica.disk
            if core is None or core.leader is None or replica.is_paused or not core.is_leading or disk.is_full:
                continue
            if self._open_group(disk) is not None:
                continue
            if replica.rewritten is None:
                first = self._complete_end(disk, self.rng.randint(core.log.first, core.log.high_watermark))
                known = self._state_of(disk.cells[disk.first :])
                if known > self._state_of(disk.cells[first:]):
                    self._append_value(replica, core.leader.epoch)
                    self.states[disk.cells[-1]] = known
                replica.rewritten = (first, len(disk.cells))
                if self.flushes:
                    self._flush_later(replica)
                self._report_log(replica)
            elif core.log.high_watermark >= replica.rewritten[1]:
                self._delete(replica, replica.rewritten[0])
                disk.synced = max(disk.synced, disk.first)
                core.deleted(disk.first)
                replica.rewritten = None

    def fault(self) -> None:
        """Let something go wrong, or be mended."""
        replica = self.rng.choice(list(self.replicas.values()))
        kind = self.rng.choice(FAULT_KINDS)
        if kind == "leader":
            leading = [one for one in self.replicas.values() if one.core is not None and one.core.leader is not None]
            replica, kind = (
                (self.rng.choice(leading), self.rng.choice(("kill", "pause", "power")))
                if leading
                else (replica, "start")
            )
        if kind == "kill":
            self.kill(replica)
        elif kind == "power":
            self.kill(replica, loses_power=True)
        elif kind == "start" and replica.core is None:
            self.start(replica)
        elif kind == "pause":
            self.note(f"replica {replica.replica_id} stops for a while")
            replica.is_paused = True
        elif kind == "resume" and replica.is_paused:
            self.note(f"replica {replica.replica_id} goes on")
            replica.is_paused = False
            if self.flushes and replica.core is not None:
                self._flush_later(replica)
        elif kind == "cut":
            ends = self.rng.sample([0, *self.replicas], 2)
            self.cuts.add((ends[0], ends[1]))
            self.note(f"cut from {ends[0]} to {ends[1]}")
        elif kind == "mend":
            self.cuts.clear()
        elif kind == "disk" and replica.core is None and self._others_electable(replica):
            self.replace_disk(replica)
        elif kind == "damage" and replica.core is None and self._others_electable(replica):
            self.note(f"replica {replica.replica_id}: the log is damaged")
            replica.disk.is_damaged = True
        elif kind == "fsync" and self._others_electable(replica):
            self.fail_disk(replica)
        elif kind == "full":
            self.note(f"replica {replica.replica_id}: the disk is full")
            replica.disk.is_full = True
        elif kind == "space":
            for one in self.replicas.values():
                one.disk.is_full = False
        elif kind == "clock":
            replica.clock_ms += self.rng.choice((10, 1000, 3_600_000))

    def _others_electable(self, replica: SimulatedReplica) -> bool:
        """Return whether the set survives the loss of this disk: at least one other disk has all that is committed."""
        state = self.coordinator.state
        return any(
            one.disk.incarnation in (state.in_sync.get(number), state.eligible.get(number))
            for number, one in self.replicas.items()
            if one is not replica and not one.disk.is_damaged
        )

    @classmethod
    def of_seed(cls, seed: int) -> Simulation:
        """Return a simulation whose size depends on the seed, too."""
        return cls(seed, replicas=(3, 3, 5, 2)[seed % 4])

    def run(self, duration_ms: int = 15_000) -> None:
        """Run under faults and load, then without faults until all replicas agree."""
        until = duration_ms
        writes_every = self.rng.choice((20, 60, 200))
        faults_every = self.rng.choice((300, 1000, 3000))

        def load() -> None:
            self.write()
            if self.now < until:
                self.after(1 + self.rng.randrange(writes_every * 2), load)

        def trouble() -> None:
            if self.now < until:
                self.fault()
                self.after(1 + self.rng.randrange(faults_every * 2), trouble)

        def retention() -> None:
            if self.now < until:
                self.trim()
                self.after(1 + self.rng.randrange(4000), retention)

        self.after(500, load)
        self.after(1500, trouble)
        if self.rng.random() < 0.5:
            self.after(3000, retention)
        self.run_until(until)
        self.settle()

    def settle(self) -> None:
        """End all faults, and wait until one replica leads and the others have caught up."""
        self.faults = Faults(0, 0, 5, 0, 0, 0, 0, 5)
        self.cuts.clear()
        self.note("all faults are over")
        for replica in self.replicas.values():
            replica.is_paused = replica.disk.is_full = False
            if replica.core is None:
                self.start(replica)
            elif self.flushes:
                self._flush_later(replica)
        if not self.flushes and not any(self._is_electable(one) for one in self.replicas.values()):
            return  # each replica lost power with written bytes: an operator must decide, and nobody leads
        self.check(self.run_until(self.now + 30_000, self._agree), "it goes on: one leader, and all have caught up")
        for value, offset in self.acknowledged.items():
            self.check(self.committed[offset][1] == value, f"nothing lost: acknowledged write {value}")

    def _is_electable(self, replica: SimulatedReplica) -> bool:
        state = self.coordinator.state
        number = replica.replica_id
        is_listed = replica.disk.incarnation in (state.in_sync.get(number), state.eligible.get(number))
        return is_listed and not replica.disk.is_damaged

    def _agree(self) -> bool:
        leaders = [one for one in self.replicas.values() if one.core is not None and one.core.is_leading]
        incarnations = {number: one.disk.incarnation for number, one in self.replicas.items()}
        is_damaged = any(one.disk.is_damaged for one in self.replicas.values())
        if len(leaders) != 1 or is_damaged or self.coordinator.state.in_sync != incarnations:
            return False
        leader = leaders[0]
        assert leader.core is not None
        end = leader.core.log.end
        return all(
            one.core is not None and one.core.log.end == end == one.core.log.high_watermark
            for one in self.replicas.values()
        )


def main() -> None:
    """Replay one seed and print its transcript."""
    arguments = argparse.ArgumentParser(description="Replay a simulated replica set.")
    arguments.add_argument("--seed", type=int, required=True)
    chosen = arguments.parse_args()
    simulation = Simulation.of_seed(chosen.seed)
    try:
        simulation.run()
    finally:
        print("\n".join(simulation.transcript))
    print(f"{simulation.steps} steps, {len(simulation.acknowledged)} acknowledged writes, no promise broken")


if __name__ == "__main__":
    main()
