"""A replica: leader, follower or candidate, by what the coordinator says and what its peers say.

1. Each step takes one event and the time, and returns one `Output`. The caller carries it out before the next step.
2. A leader that hears of a higher epoch, or that its leader key is gone, steps down before anything else.
3. A replica leads only after its election is confirmed, in the process that asked for it, and after the record of the
   new epoch is durable. A restarted leader needs a new epoch, even if its lease still lives.
4. Outcomes of calls may be unknown: the replica reads the state, and recognises its own change by a random value.
5. Lease and clocks detect failures only. No rule of safety depends on them.
"""

from __future__ import annotations

from collections.abc import Callable

from sparrow.replication.core import membership, notices
from sparrow.replication.core.candidacy import Candidacy
from sparrow.replication.core.fetch import Fetch, FetchAnswer, Rejected, SafeEnd
from sparrow.replication.core.follower import Follower
from sparrow.replication.core.leader import Leader
from sparrow.replication.core.log_position import LogPosition
from sparrow.replication.core.options import SETTLED_READS, TICK_MS_MAX, ReplicaOptions
from sparrow.replication.core.output import Output, Read, Resign
from sparrow.replication.core.snapshot import LeaderKey, Snapshot


class Replica:
    """The state machine of one replica."""

    def __init__(
        self,
        options: ReplicaOptions,
        incarnation: str,
        log: LogPosition,
        make_id: Callable[[], str],
        *,
        heard_epoch: int = 0,
        must_copy: bool = False,
    ) -> None:
        """Start as a follower of nobody. `make_id` returns random values: incarnations and ids of changes.

        `must_copy`: the log is damaged; nothing of it is used, and a leader's log is copied instead.
        """
        self.options, self.incarnation, self.log, self._make_id = options, incarnation, log, make_id
        self.heard_epoch = max(heard_epoch, log.epochs.last)
        """The highest epoch that this replica has heard of."""
        self._must_copy = must_copy
        self.leader: Leader | None = None
        self.follower: Follower | None = None
        self.is_stopped = False
        """An alarm was raised: an operator must act."""
        self.snapshot: Snapshot | None = None
        """What the coordinator holds, as far as it is known."""
        self._read_ms: int | None = None
        self._answered_ms = -options.read_every_ms
        self._candidacy = Candidacy(options, make_id)
        self._repeats_change = False
        """A proposed change may have been lost."""

    @property
    def leader_address(self) -> str:
        """Where the leader takes fetches, as far as it is known."""
        return self.snapshot.leader_address if self.snapshot is not None else ""

    @property
    def is_removed(self) -> bool:
        """Whether the set goes on without this replica."""
        return self.snapshot is not None and self.options.replica_id not in self.snapshot.state.members

    @property
    def is_leading(self) -> bool:
        """Whether this replica accepts sends."""
        return self.leader is not None and self.leader.accepts_writes

    # -- events -------------------------------------------------------------------------------------------------------

    def due_ms(self, now_ms: int) -> int:
        """Return when the next `tick` is due, if nothing happens before."""
        if self.leader is not None:
            return min(now_ms + TICK_MS_MAX, self.leader.due_ms(now_ms))
        due_ms = self.follower.due_ms() if self.follower is not None else self._candidacy.due_ms
        return min(now_ms + TICK_MS_MAX, due_ms if due_ms is not None else now_ms + TICK_MS_MAX)

    def tick(self, now_ms: int) -> Output:
        """Do what is due (`due_ms`)."""
        output = Output()
        if self.is_stopped:
            return output
        is_settled = self.leader is not None or now_ms - self._answered_ms <= self.options.read_every_ms
        read_ms = self.options.read_every_ms * (SETTLED_READS if is_settled else 1)
        if self._read_ms is None or now_ms - self._read_ms >= read_ms:
            self._read_ms = now_ms
            output.calls.append(Read())
        if self.leader is not None:
            self.leader.tick(now_ms, self._make_id, output)
            self._resign_if_useless(self.leader, now_ms, output)
            self._hand_over_if_ready(output)
            if self.leader is not None:
                self.leader.end_transfer(now_ms)
        elif self.follower is not None:
            self.follower.tick(now_ms, output)
        elif self._candidacy.due_ms is not None and now_ms >= self._candidacy.due_ms:
            self._candidacy.due_ms = None
            self._elect(output)
        return output

    def observed(self, snapshot: Snapshot, now_ms: int) -> Output:
        """Take over what was read or watched. Snapshots may arrive late and out of order."""
        output, known = Output(), self.snapshot
        if self.is_stopped:
            return output
        if snapshot.state.set_id != self.options.set_id:
            output.notice = notices.another_set(snapshot.state.set_id, self.options.set_id)
            return output
        if known is not None and snapshot.revision < known.revision:
            if snapshot.state.epoch < self.heard_epoch:
                output.notice = notices.went_back(snapshot.state.epoch, self.heard_epoch)
            return output
        self.snapshot = snapshot
        self._hear(snapshot.state.epoch, output)
        holder = snapshot.leader
        if self.leader is not None:
            if holder is not None and holder.create_revision == self.leader.leader_revision:
                self.leader.observed(snapshot.state, snapshot.state_revision, output)
                if self.leader.pending is not None and self._repeats_change:
                    # It was not applied when this was read, and it may still be: repeat it until that is decided.
                    self._repeats_change = False
                    output.calls.append(self.leader.change_call())
                return output
            self._step_down("the leader key is gone", output)
        if self.is_removed:
            self._stop_following()
            self._candidacy.due_ms = None
        elif holder is None:
            self._stop_following()
            self._plan_election(now_ms)
        elif self._candidacy.has_won(holder):
            self._lead(holder, snapshot, now_ms, output)
        elif holder.replica_id == self.options.replica_id:
            self._stop_following()
            self._plan_election(now_ms)  # the key of an earlier life
        elif holder.epoch >= self.heard_epoch:
            self._candidacy.due_ms = None
            self._follow(holder, snapshot, now_ms, output)
        if snapshot.state.epoch < self.heard_epoch and self.leader is None:
            output.notice = notices.went_back(snapshot.state.epoch, self.heard_epoch)
        return output

    def call_ended(self, now_ms: int) -> Output:
        """Read the state: a call was carried out, was refused, or its outcome is unknown."""
        output = Output()
        if not self.is_stopped:
            self._read_ms = now_ms
            self._repeats_change = True
            output.calls.append(Read())
        return output

    def epoch_started(self, epoch: int, start: int, end: int) -> Output:
        """Begin to serve: the record of the epoch is durable, from `start` to `end`.

        An atomic append without its end was cut off before it.
        """
        output = Output()
        if self.leader is not None and self.leader.epoch == epoch and not self.leader.is_ready:
            self.log.truncate(start)
            self.log.epochs.begin(epoch, start)
            self.leader.start(start, end, output)
        return output

    def epoch_not_started(self, why: str, end: int, now_ms: int) -> Output:
        """Give the leadership up: the record of the epoch could not be written, and the log ends at `end`."""
        output = Output()
        if self.leader is not None and not self.leader.is_ready:
            self._resign(self.leader, why, now_ms, output)
            self.log.truncate(end)
        return output

    def appended(self, end: int, safe_end: int) -> Output:
        """Note what the leader's own sends have written and flushed. `safe_end` is not inside an atomic append."""
        output = Output()
        if self.leader is not None and self.leader.is_ready:
            self.leader.appended(end, safe_end, output)
        return output

    def deleted(self, first: int) -> None:
        """Note that the leader's retention has deleted the bytes before `first`, which are committed."""
        self.log.delete_before(first)

    def set_full(self, is_full: bool) -> None:
        """Note whether the disk has space for more. A leader without any hands over, and a candidate is patient."""
        self._candidacy.is_full = is_full
        if self.leader is not None:
            self.leader.resignation.set_full(is_full)

    def disk_failed(self, why: str) -> Output:
        """Stop: acknowledged bytes may be gone, or cannot be read. Another replica leads; this one gets a new life."""
        output = self.stop(why)
        if output.alarm is not None:
            self.incarnation = self._make_id()
            output.heard_epoch = self.heard_epoch
        return output

    def stop(self, why: str) -> Output:
        """Take no part in the set any more, with an alarm."""
        output = Output()
        if self.is_stopped:
            return output
        leader = self.leader
        if leader is not None:
            self._step_down(why, output)
            output.calls.append(Resign(leader.leader_revision))
        self._stop_following()
        self.is_stopped = True
        output.alarm = why
        return output

    def found_tail(self, end: int, now_ms: int) -> Output:
        """Note that a former leader has written up to `end`, which it had not reported when it stepped down."""
        output = Output()
        assert self.leader is None
        assert end >= self.log.end
        self.log.end = end
        if self.follower is not None:
            self.follower.continue_at(end, now_ms, output)
        return output

    def stored(self, end: int, safe_end: int, complete_end: int, now_ms: int) -> Output:
        """Note that a chunk is written: the last whole record ends at `end`, and `safe_end` of it is safe.

        `complete_end`: the end, or the begin of an atomic append whose end has not arrived; `safe_end` is not inside
        an atomic append.
        """
        assert self.follower is not None, "a chunk is stored before the next step"
        output = Output()
        self.follower.stored(end, safe_end, complete_end, now_ms, output)
        return output

    def not_stored(self, end: int, now_ms: int) -> None:
        """Note that a chunk could not be written: the log ends at `end`, and the rest is fetched again."""
        assert self.follower is not None, "a chunk is stored before the next step"
        self.follower.not_stored(end, now_ms)

    def flushed(self, safe_end: int) -> Output:
        """Note that a follower's bytes are flushed up to this offset."""
        output = Output()
        if self.follower is not None:
            self.follower.flushed(safe_end, output)
        elif self.leader is None:
            self.log.safe_end = max(self.log.safe_end, min(safe_end, self.log.end))
        return output

    def fetched(self, fetch: Fetch, now_ms: int) -> Output:
        """Answer the fetch of another replica."""
        output = Output()
        if fetch.set_id == self.options.set_id:
            self._hear(fetch.epoch, output)
        if self.leader is None:
            answer = Rejected(epoch=self.heard_epoch, reason=f"replica {self.options.replica_id} does not lead")
            output.replies.append((fetch.replica_id, answer))
        else:
            self.leader.fetch(fetch, now_ms, output)
            self._hand_over_if_ready(output)
        return output

    def acknowledged(self, word: SafeEnd) -> Output:
        """Count the flush of a follower."""
        output = Output()
        if self.leader is not None:
            self.leader.flushed(word, output)
            self._hand_over_if_ready(output)
        return output

    def answered(self, answer: FetchAnswer, now_ms: int) -> Output:
        """Apply the leader's answer to a fetch."""
        output = Output()
        if self.is_stopped:
            return output
        self._hear(answer.epoch, output)
        if self.follower is not None:
            self._answered_ms = now_ms
            self.follower.answered(answer, now_ms, self._make_id, output)
            if self.follower is not None:
                self.incarnation = self.follower.incarnation
            self._must_copy = self._must_copy and output.restart_at is None
            self.is_stopped = output.alarm is not None
        return output

    def fetch_failed(self, epoch: int, now_ms: int, *, is_refused: bool = False) -> Output:
        """Fetch again. `epoch`: that of the fetch. `is_refused`: the leader's process is gone, so its lease may go.

        That is safe where it is wrong: the worst is a needless election.
        """
        output = Output()
        if self.follower is not None and self.follower.epoch == epoch:
            self.follower.failed(now_ms)
            holder = self.snapshot.leader if self.snapshot is not None else None
            if is_refused and holder is not None and holder.replica_id == self.follower.leader_id:
                output.calls.append(Resign(holder.create_revision))
        return output

    def begin_transfer(self, successor: int | None, until_ms: int) -> str | None:
        """Hand the leadership over to an in-sync follower. Return why that is not possible; None: it has begun."""
        return "it does not lead" if self.leader is None else self.leader.begin_transfer(successor, until_ms)

    def leaves(self, replica_id: int, now_ms: int) -> Output:
        """Let a follower leave the in-sync set: it is about to stop."""
        output = Output()
        if self.leader is not None:
            self.leader.leaving.add(replica_id)
            self.leader.tick(now_ms, self._make_id, output)
        return output

    # -- roles --------------------------------------------------------------------------------------------------------

    def _hear(self, epoch: int, output: Output) -> None:
        """Note an epoch; a higher one ends a leadership, and the following of an older leader."""
        if epoch <= self.heard_epoch:
            return
        self.heard_epoch = output.heard_epoch = epoch
        if self.leader is not None and epoch > self.leader.epoch:
            self._step_down(f"epoch {epoch} has begun", output)
        if self.follower is not None and epoch > self.follower.epoch:
            self._stop_following()
        self._read_ms = None

    def _stop_following(self) -> None:
        """Forget the beginning of a record that was received, and the epoch that it may have begun."""
        self.follower = None
        self.log.epochs.truncate(self.log.end)

    def _step_down(self, why: str, output: Output) -> None:
        self.leader = None
        output.step_down = why
        self._candidacy.forget()

    def _follow(self, holder: LeaderKey, snapshot: Snapshot, now_ms: int, output: Output) -> None:
        if self.follower is not None and self.follower.epoch == holder.epoch:
            return
        self.follower = Follower(
            *(self.options, self.incarnation, self.log, holder.replica_id, holder.epoch),
            loss_is_accepted=snapshot.state.loss_accepted_epoch >= holder.epoch,
            must_copy=self._must_copy,
        )
        self.follower.tick(now_ms, output)

    def _plan_election(self, now_ms: int) -> None:
        if self.snapshot is not None and self._is_electable():
            self._candidacy.plan(self.snapshot, now_ms)

    def _is_electable(self) -> bool:
        return (
            self.snapshot is not None
            and not self._must_copy
            and membership.is_electable(self.snapshot.state, self.options.replica_id, self.incarnation)
        )

    def _elect(self, output: Output) -> None:
        snapshot = self.snapshot
        if snapshot is None or not self._is_electable() or snapshot.state.epoch < self.heard_epoch:
            return  # if the epoch is lower, the snapshot is late, or the coordinator was restored: read again
        output.calls.append(self._candidacy.ask(snapshot, self.incarnation, self.log.epochs.last, self.heard_epoch))

    def _lead(self, holder: LeaderKey, snapshot: Snapshot, now_ms: int, output: Output) -> None:
        """Begin the leadership that was won; its epoch record comes first."""
        self._candidacy.forget()
        self._candidacy.due_ms = None
        self._stop_following()
        if holder.epoch < self.heard_epoch or holder.incarnation != self.incarnation:
            output.calls.append(Resign(holder.create_revision))
            return
        self.leader = Leader(
            *(self.options.replica_id, self.incarnation, self.log, snapshot.state),
            snapshot.state_revision,
            holder.create_revision,
            now_ms,
            lag_ms=self.options.lag_ms,
            is_full=self._candidacy.is_full,
        )
        output.start_epoch = holder.epoch

    def _hand_over_if_ready(self, output: Output) -> None:
        """Step down in favour of the successor of a planned hand-over, as soon as it has everything."""
        leader = self.leader
        if leader is not None and leader.transfer is not None and leader.successor_is_ready:
            output.calls.append(leader.hand_over_call(self._make_id()))
            self._step_down(f"replica {leader.transfer.successor} takes over", output)

    def _resign_if_useless(self, leader: Leader, now_ms: int, output: Output) -> None:
        """Resign if nothing can be written or committed here and another replica, which runs, could lead."""
        others = self.snapshot is not None and bool(self.snapshot.running_electable() - {self.options.replica_id})
        if leader.resignation.is_due(leader.state, now_ms, self.options.resign_after_ms, another_could_lead=others):
            self._resign(leader, leader.resignation.reason, now_ms, output)

    def _resign(self, leader: Leader, why: str, now_ms: int, output: Output) -> None:
        """Step down, and let others be elected before this replica."""
        output.calls.append(Resign(leader.leader_revision))
        self._step_down(why, output)
        self._candidacy.due_ms = now_ms + self.options.resign_after_ms
