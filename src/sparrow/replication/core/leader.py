"""The leader: answers fetches, commits, and keeps the in-sync set.

1. It answers only a follower whose last byte has the same offset and epoch as its own byte there. So what the follower
   acknowledges is a prefix of the leader's log.
2. Only acknowledgements of this epoch count, and only for the incarnation that the in-sync set names.
3. While the outcome of a change is unknown, nothing is committed that one of the two states would not allow, and no
   other change is proposed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sparrow.replication.core import member_changes, membership
from sparrow.replication.core.fetch import Chunk, Diverged, Fetch, FetchAnswer, OutOfRange, Rejected, SafeEnd
from sparrow.replication.core.log_position import LogPosition
from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.core.output import Change, HandOver, Output
from sparrow.replication.core.resignation import Resignation

ChangeIds = Callable[[], str]
"""Makes the random value that a change of the state carries."""

LOOK_MS = 100
"""How often who leaves or joins the in-sync set is looked at, unless all followers have everything."""
LIVE_MS = 3000
"""A follower that has not fetched for so long is not there; it fetches at least every half second."""


@dataclass(slots=True)
class FollowerProgress:
    """How far a follower is, in this epoch."""

    incarnation: str
    offset: int
    """All before it is verified to be the same as at the leader."""
    safe_end: int
    fetched_ms: int
    caught_up_ms: int
    """When it had, at the last time, all that the leader had."""
    end_at_fetch: int
    """The leader's end at its last fetch."""
    sent_end: int
    """Up to where bytes were sent to it."""
    may_join: bool = False
    """It has reached the leader's end as of its fetch before."""
    high_watermark: int = 0
    """What its readers may see."""


@dataclass(slots=True)
class Transfer:
    """A planned hand-over that has begun: sends are refused until the successor has everything, or time is over."""

    successor: int
    until_ms: int


@dataclass(slots=True)
class _Parked:
    fetch: Fetch
    until_ms: int


class Leader:
    """The state of one leadership."""

    def __init__(
        self,
        replica_id: int,
        incarnation: str,
        log: LogPosition,
        state: ReplicaSetState,
        state_revision: int,
        leader_revision: int,
        now_ms: int,
        *,
        lag_ms: int,
        is_full: bool = False,
    ) -> None:
        self.replica_id, self.incarnation, self.log = replica_id, incarnation, log
        self.state, self.state_revision, self.leader_revision = state, state_revision, leader_revision
        self.epoch, self.epoch_start = state.epoch, log.end
        self.pending: ReplicaSetState | None = None
        """A proposed state whose outcome is unknown."""
        self.is_ready = False
        """The epoch record is durable: fetches are answered and sends accepted."""
        self.began_ms, self.lag_ms = now_ms, lag_ms
        self.resignation = Resignation(is_full=is_full)
        self.progress: dict[int, FollowerProgress] = {}
        self.transfer: Transfer | None = None
        self._awaited: set[int] = set()
        """Followers that keep up, and could join S if the high watermark did not move on: it waits for them."""
        self.leaving: set[int] = set()
        """Followers that are about to stop: nobody should wait for them."""
        self._parked: dict[int, _Parked] = {}

    @property
    def accepts_writes(self) -> bool:
        """Whether a send could be committed; otherwise it is refused before anything is written."""
        return self.is_ready and self.transfer is None and len(self.state.in_sync) >= self.state.min_in_sync

    # -- the log ------------------------------------------------------------------------------------------------------

    def start(self, start: int, end: int, output: Output) -> None:
        """Begin to serve: the epoch record is durable, from `start` to `end`."""
        self.is_ready, self.epoch_start = True, start
        self.log.end = self.log.safe_end = end
        self._advance(output)

    def appended(self, end: int, safe_end: int, output: Output) -> None:
        """Note that this replica has written up to `end`, and flushed up to `safe_end`."""
        assert end >= self.log.end
        assert self.log.safe_end <= safe_end <= end
        self.log.end, self.log.safe_end = end, safe_end
        self._advance(output)
        self._answer_parked(output)

    def _advance(self, output: Output) -> None:
        states = (self.state,) if self.pending is None else (self.state, self.pending)
        safe_ends = {(member, at.incarnation): at.safe_end for member, at in self.progress.items()}
        safe_ends[self.replica_id, self.incarnation] = self.log.safe_end
        reached = membership.high_watermark(self.log.high_watermark, safe_ends, states)
        # Without it, a follower that is always a little behind could never join under load.
        reached = min((reached, *(self.progress[member].safe_end for member in self._awaited)))
        assert reached <= self.log.end
        if self.log.commit_to(reached):
            output.committed = reached

    # -- fetches ------------------------------------------------------------------------------------------------------

    def fetch(self, fetch: Fetch, now_ms: int, output: Output) -> None:
        """Answer a fetch, now or once there is something to tell."""
        answer = self._refusal(fetch) or self._verify(fetch)
        if answer is not None:
            self._parked.pop(fetch.replica_id, None)
            output.replies.append((fetch.replica_id, answer))
            return
        self._note(fetch, now_ms)
        self._advance(output)
        if fetch.offset == self.log.end:
            self._parked[fetch.replica_id] = _Parked(fetch, now_ms + fetch.wait_ms)
        else:
            self._parked.pop(fetch.replica_id, None)
            output.replies.append((fetch.replica_id, self._chunk(fetch)))
        self._answer_parked(output)

    def _refusal(self, fetch: Fetch) -> FetchAnswer | None:
        if fetch.set_id != self.state.set_id:
            return Rejected(epoch=self.epoch, reason=f"this is no replica of set {fetch.set_id!r}: check the settings")
        if fetch.replica_id not in self.state.members or fetch.replica_id == self.replica_id:
            return Rejected(epoch=self.epoch, reason=f"replica {fetch.replica_id} is no other member of the set")
        if fetch.epoch != self.epoch or not self.is_ready:
            return Rejected(epoch=self.epoch, reason=f"replica {self.replica_id} leads in epoch {self.epoch}")
        if not fetch.safe_end <= fetch.offset or (fetch.offset > self.log.end and fetch.last_epoch == self.epoch):
            return Rejected(epoch=self.epoch, reason="the fetch acknowledges more than the leader has written")
        return None

    def _verify(self, fetch: Fetch) -> FetchAnswer | None:
        """Return an answer if the follower's log is no prefix of the leader's, or cannot be continued."""
        log = self.log
        if fetch.offset < log.first or (fetch.last_epoch == 0 and fetch.offset != log.first):
            return self._out_of_range(fetch)
        if fetch.last_epoch == 0:
            return None  # the follower is empty, and starts where the leader's log does
        common = log.epochs.largest_up_to(fetch.last_epoch)
        if common == 0:
            # The logs part before the leader's first byte, where they cannot be compared any more.
            return self._out_of_range(fetch)
        common_end = log.epochs.end_of(common, log.end)
        if common == fetch.last_epoch and fetch.offset <= common_end:
            if fetch.offset == log.first or log.epochs.epoch_before(fetch.offset) == common:
                return None
            # The leader's epoch starts later: the follower's bytes are of no epoch that the leader knows.
            common = log.epochs.largest_up_to(common - 1)
            if common == 0:
                return self._out_of_range(fetch)
            common_end = log.epochs.end_of(common, log.end)
        return Diverged(
            epoch=self.epoch,
            offset=fetch.offset,
            last_epoch=fetch.last_epoch,
            common_epoch=common,
            common_end=common_end,
        )

    def _out_of_range(self, fetch: Fetch) -> OutOfRange:
        return OutOfRange(epoch=self.epoch, offset=fetch.offset, last_epoch=fetch.last_epoch, first=self.log.first)

    def _note(self, fetch: Fetch, now_ms: int) -> None:
        if fetch.replica_id not in self.state.in_sync:
            self.leaving.discard(fetch.replica_id)  # it was started again
        before = self.progress.get(fetch.replica_id)
        if before is None or before.incarnation != fetch.incarnation:
            self.progress[fetch.replica_id] = FollowerProgress(
                fetch.incarnation, fetch.offset, fetch.safe_end, now_ms, self.began_ms, self.log.end, fetch.offset
            )
            return
        # "Caught up" means the end as of the previous fetch: under load the end is always a little ahead.
        before.may_join = fetch.safe_end >= before.end_at_fetch
        if fetch.safe_end >= self.log.end:
            before.caught_up_ms = now_ms
        elif before.may_join:
            before.caught_up_ms = before.fetched_ms
        before.offset, before.safe_end = fetch.offset, max(before.safe_end, fetch.safe_end)
        before.fetched_ms, before.end_at_fetch = now_ms, self.log.end
        before.high_watermark = fetch.high_watermark

    def flushed(self, word: SafeEnd, output: Output) -> None:
        """Count the acknowledgement of a flush, if this leader has sent the bytes in this epoch."""
        at = self.progress.get(word.replica_id)
        if (
            at is None
            or (word.set_id, word.epoch) != (self.state.set_id, self.epoch)
            or at.incarnation != word.incarnation
            or not at.safe_end < word.safe_end <= at.sent_end
        ):
            return
        at.safe_end = word.safe_end
        self._advance(output)
        self._answer_parked(output)

    def _marks_known_to(self, fetch: Fetch) -> int:
        """Return the high watermark that the follower should know: one answer is worth it when it moved."""
        return min(self.log.high_watermark, fetch.offset)

    def _chunk(self, fetch: Fetch) -> Chunk:
        log = self.log
        end = min(fetch.offset + fetch.bytes_max, log.end, log.epochs.next_start(fetch.offset) or log.end)
        at = self.progress[fetch.replica_id]
        at.sent_end = max(at.sent_end, end)
        # A follower deletes what the leader has deleted once it has committed as much. The state that was written
        # again before lies below the start of this epoch, or this leader has seen it committed.
        knows_deletions = log.high_watermark >= self.epoch_start
        return Chunk(
            epoch=self.epoch,
            offset=fetch.offset,
            length=end - fetch.offset,
            chunk_epoch=log.epochs.epoch_before(fetch.offset + 1) if end > fetch.offset else 0,
            high_watermark=log.high_watermark,
            first=log.first if knows_deletions else 0,
            end=log.end,
        )

    def _answer_parked(self, output: Output, now_ms: int | None = None) -> None:
        for member, parked in list(self._parked.items()):
            fetch = parked.fetch
            is_over = now_ms is not None and now_ms >= parked.until_ms
            # A high watermark alone is told at a tick: under load the next bytes carry it.
            is_behind = now_ms is not None and fetch.high_watermark < self._marks_known_to(fetch)
            if is_over or is_behind or fetch.offset < self.log.end:
                del self._parked[member]
                output.replies.append((member, self._chunk(fetch)))

    def live_followers(self, now_ms: int) -> dict[int, FollowerProgress]:
        """Return the followers that have fetched lately, in sync or not, by id."""
        return {member: at for member, at in self.progress.items() if now_ms - at.fetched_ms <= LIVE_MS}

    # -- the in-sync set ----------------------------------------------------------------------------------------------

    def due_ms(self, now_ms: int) -> int:
        """Return when a fetch has waited long enough, or who is in sync may have changed."""
        waits_of_all = self._parked.keys() | {self.replica_id} == self.state.in_sync.keys()
        is_settled = self.pending is None and self.transfer is None and (waits_of_all or self.state.is_fixed)
        return min((parked.until_ms for parked in self._parked.values() if is_settled), default=now_ms + LOOK_MS)

    def tick(self, now_ms: int, make_id: ChangeIds, output: Output) -> None:
        """Answer fetches that waited long enough, and propose who joins or leaves the in-sync set."""
        self._answer_parked(output, now_ms)
        if self.state.is_fixed:
            return
        if self.is_ready and self.pending is None:
            proposed = self._leaving(now_ms, make_id) or self._joining(now_ms, make_id)
            if proposed is not None:
                self.pending = proposed
                self._advance(output)
                output.calls.append(self.change_call())
        self._await_joining(now_ms, output)

    def _await_joining(self, now_ms: int, output: Output) -> None:
        awaited = {
            member
            for member, at in self.progress.items()
            if member in self.state.members and member not in self.state.in_sync and member not in self.leaving
            if at.may_join and at.safe_end < self.log.high_watermark and now_ms - at.caught_up_ms <= self.lag_ms
        }
        if awaited != self._awaited:
            self._awaited = awaited
            self._advance(output)

    def change_call(self) -> Change:
        """Return the call that proposes the pending state; it may be repeated until its outcome is known."""
        assert self.pending is not None
        return Change(state=self.pending, state_revision=self.state_revision, leader_revision=self.leader_revision)

    def _leaving(self, now_ms: int, make_id: ChangeIds) -> ReplicaSetState | None:
        for member, incarnation in self.state.in_sync.items():
            if member == self.replica_id:
                continue
            at = self.progress.get(member)
            caught_up_ms = self.began_ms if at is None or at.incarnation != incarnation else at.caught_up_ms
            is_another = at is not None and at.incarnation != incarnation
            if is_another or member in self.leaving or now_ms - caught_up_ms > self.lag_ms:
                return membership.leave(self.state, member, make_id())
        return None

    def _joining(self, now_ms: int, make_id: ChangeIds) -> ReplicaSetState | None:
        for member, at in self.progress.items():
            is_outside = member not in self.state.in_sync and member not in self.leaving
            if is_outside and member in self.state.members and self.may_join(at, now_ms):
                return membership.join(self.state, member, at.incarnation, make_id())
        return None

    def may_join(self, at: FollowerProgress, now_ms: int) -> bool:
        """Return whether a follower has everything committed, and keeps up."""
        return (
            at.may_join
            and at.safe_end >= self.log.high_watermark
            and at.safe_end > self.epoch_start
            and now_ms - at.caught_up_ms <= self.lag_ms
        )

    # -- hand-over ----------------------------------------------------------------------------------------------------

    def begin_transfer(self, successor: int | None, until_ms: int) -> str | None:
        """Refuse sends until a follower has everything. Return why that is not possible; None: it has begun."""
        candidates = {
            member: self.progress[member].safe_end
            for member, incarnation in self.state.in_sync.items()
            if member != self.replica_id
            and member not in self.leaving
            and member in self.progress
            and self.progress[member].incarnation == incarnation
        }
        if self.state.is_fixed:
            return "its role is fixed: stop it, and start a slave's directory as the master"
        if self.transfer is not None:
            return f"a hand-over to replica {self.transfer.successor} is under way"
        if not self.is_ready:
            return "the leader has only just been elected: try again"
        if successor is not None and successor not in candidates:
            return f"replica {successor} is not an in-sync follower: start it, and wait until it has caught up"
        if not candidates:
            return "no follower is in sync: start one, and wait until it has caught up"
        chosen = max(candidates, key=lambda member: candidates[member]) if successor is None else successor
        self.transfer = Transfer(chosen, until_ms)
        return None

    def end_transfer(self, now_ms: int) -> None:
        """Go on to lead if the time of a hand-over is over."""
        if self.transfer is not None and now_ms >= self.transfer.until_ms:
            self.transfer = None

    @property
    def successor_is_ready(self) -> bool:
        """Whether the successor, in sync, has everything, and nothing waits to be committed."""
        assert self.transfer is not None
        successor = self.transfer.successor
        at = self.progress.get(successor)
        return (
            self.pending is None
            and at is not None
            and self.state.in_sync.get(successor) == at.incarnation
            and at.safe_end == self.log.end == self.log.high_watermark
        )

    def hand_over_call(self, change_id: str) -> HandOver:
        """Return the call that leaves the set to the successor. The leader steps down before it is made."""
        assert self.transfer is not None
        state = member_changes.hand_over(self.state, self.transfer.successor, change_id)
        return HandOver(state=state, state_revision=self.state_revision, leader_revision=self.leader_revision)

    def observed(self, state: ReplicaSetState, revision: int, output: Output) -> None:
        """Take over the state that the coordinator holds."""
        if revision > self.state_revision:
            self.state, self.state_revision = state, revision
            # Any later revision decides a pending change: it was applied, or can no longer be.
            self.pending = None
            self._advance(output)
        self._answer_parked(output)
