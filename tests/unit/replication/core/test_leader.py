"""The leader of a replica set: fetches, acknowledgements, and the in-sync set."""

from typing import Any

import msgspec
import pytest

from sparrow.replication.core.epochs import EpochHistory, EpochStart
from sparrow.replication.core.fetch import Chunk, Diverged, Fetch, OutOfRange, Rejected, SafeEnd
from sparrow.replication.core.leader import Leader
from sparrow.replication.core.log_position import LogPosition
from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.core.output import Change, Output

STATE = ReplicaSetState(
    set_id="set", members=(1, 2, 3), min_in_sync=2, epoch=5, leader=1, in_sync={1: "a", 2: "b", 3: "c"}
)


def leader(state: ReplicaSetState = STATE) -> Leader:
    """Return the leader of epoch 5: bytes 10..19 are of epoch 2, 20..29 of epoch 4, and 30..39 its own."""
    log = LogPosition(10, 30, 30, 10, EpochHistory([EpochStart(2, 10), EpochStart(4, 20)]))
    made = Leader(1, "a", log, state, 7, 7, 0, lag_ms=1000)
    log.epochs.begin(5, 30)
    made.start(30, 40, Output())
    return made


def fetch(**changed: Any) -> Fetch:
    usual = Fetch(
        set_id="set",
        replica_id=2,
        incarnation="b",
        epoch=5,
        offset=30,
        last_epoch=4,
        safe_end=30,
        high_watermark=0,
        bytes_max=100,
        wait_ms=500,
    )
    return msgspec.structs.replace(usual, **changed)


def answer(of: Leader, request: Fetch, now_ms: int = 0) -> Any:
    """Return the leader's answer; None if the fetch waits."""
    output = Output()
    of.fetch(request, now_ms, output)
    return next((reply for member, reply in output.replies if member == request.replica_id), None)


def test_a_chunk_never_crosses_the_start_of_an_epoch() -> None:
    sent = answer(leader(), fetch(offset=15, last_epoch=2, safe_end=15))
    assert isinstance(sent, Chunk)
    assert (sent.offset, sent.length, sent.chunk_epoch) == (15, 5, 2)


def test_an_empty_follower_starts_at_the_first_byte() -> None:
    sent = answer(leader(), fetch(offset=10, last_epoch=0, safe_end=10))
    assert (sent.offset, sent.length, sent.chunk_epoch) == (10, 10, 2)


def test_followers_hear_what_was_deleted_once_everything_before_the_epoch_is_committed() -> None:
    """Before that, the state that was written again for it may not be committed at a follower."""
    leading = leader()
    assert answer(leading, fetch(offset=20, last_epoch=2, safe_end=20)).first == 0
    answer(leading, fetch(replica_id=3, incarnation="c"))
    assert answer(leading, fetch()).first == leading.log.first == 10
    assert leading.log.high_watermark == leading.epoch_start == 30


@pytest.mark.parametrize(("offset", "last_epoch"), [(0, 0), (12, 0), (5, 2), (25, 1)])
def test_a_follower_whose_next_byte_is_deleted_starts_again(offset: int, last_epoch: int) -> None:
    refused = answer(leader(), fetch(offset=offset, last_epoch=last_epoch, safe_end=offset))
    assert refused == OutOfRange(epoch=5, offset=offset, last_epoch=last_epoch, first=10)


@pytest.mark.parametrize(
    ("offset", "last_epoch", "common"),
    [(35, 4, (4, 30)), (25, 3, (2, 20)), (25, 2, (2, 20)), (99, 4, (4, 30))],
)
def test_a_follower_with_other_bytes_is_told_where_to_cut(
    offset: int, last_epoch: int, common: tuple[int, int]
) -> None:
    diverged = answer(leader(), fetch(offset=offset, last_epoch=last_epoch, safe_end=0))
    assert diverged == Diverged(
        epoch=5, offset=offset, last_epoch=last_epoch, common_epoch=common[0], common_end=common[1]
    )


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"set_id": "other"}, "no replica of set 'other'"),
        ({"replica_id": 9}, "no other member"),
        ({"replica_id": 1}, "no other member"),
        ({"epoch": 4}, "leads in epoch 5"),
        ({"offset": 41, "last_epoch": 5, "safe_end": 41}, "more than the leader has written"),
        ({"offset": 30, "safe_end": 31}, "more than the leader has written"),
    ],
)
def test_a_forged_or_stale_fetch_is_rejected_and_commits_nothing(changed: dict[str, Any], reason: str) -> None:
    leading = leader()
    rejected = answer(leading, fetch(**changed))
    assert isinstance(rejected, Rejected)
    assert reason in rejected.reason
    assert not leading.progress
    assert leading.log.high_watermark == 10


def test_everything_that_all_in_sync_replicas_have_is_committed() -> None:
    leading = leader()
    answer(leading, fetch(offset=40, last_epoch=5, safe_end=35))
    assert leading.log.high_watermark == 10
    answer(leading, fetch(replica_id=3, incarnation="c", offset=40, last_epoch=5, safe_end=40))
    assert leading.log.high_watermark == 35


def test_another_incarnation_does_not_acknowledge_and_leaves_the_set_at_once() -> None:
    leading = leader()
    answer(leading, fetch(offset=40, last_epoch=5, safe_end=40))
    answer(leading, fetch(replica_id=3, incarnation="new", offset=40, last_epoch=5, safe_end=40))
    assert leading.log.high_watermark == 10
    output = Output()
    leading.tick(1, lambda: "change", output)
    (call,) = output.calls
    assert isinstance(call, Change)
    assert call.state.in_sync == {1: "a", 2: "b"}


def test_a_waiting_fetch_is_answered_when_bytes_arrive_or_the_high_watermark_moves() -> None:
    leading = leader(msgspec.structs.replace(STATE, in_sync={1: "a", 2: "b"}))
    assert answer(leading, fetch(offset=40, last_epoch=5, safe_end=30, high_watermark=30)) is None
    output = Output()
    word = SafeEnd(set_id="set", replica_id=2, incarnation="b", epoch=5, safe_end=40)
    leading.progress[2].sent_end = 40
    leading.flushed(word, output)
    assert not output.replies, "bytes may follow, which carry it"
    leading.tick(1, lambda: "change", output)
    ((_, marks),) = output.replies
    assert isinstance(marks, Chunk)
    assert (marks.length, marks.high_watermark) == (0, 40)
    assert answer(leading, fetch(offset=40, last_epoch=5, safe_end=40, high_watermark=40)) is None
    output = Output()
    leading.appended(44, 44, output)
    ((_, chunk),) = output.replies
    assert isinstance(chunk, Chunk)
    assert (chunk.offset, chunk.length) == (40, 4)


@pytest.mark.parametrize("changed", [{"safe_end": 41}, {"epoch": 4}, {"incarnation": "x"}, {"set_id": "other"}])
def test_a_forged_flush_is_ignored(changed: dict[str, Any]) -> None:
    leading = leader(msgspec.structs.replace(STATE, in_sync={1: "a", 2: "b"}))
    answer(leading, fetch(offset=30, last_epoch=4, safe_end=30))
    word = SafeEnd(set_id="set", replica_id=2, incarnation="b", epoch=5, safe_end=40)
    leading.flushed(msgspec.structs.replace(word, **changed), Output())
    assert leading.log.high_watermark == 30


def test_a_change_with_unknown_outcome_keeps_everybody_counted() -> None:
    leading = leader(msgspec.structs.replace(STATE, in_sync={1: "a", 2: "b"}))
    for now in (0, 1):
        answer(leading, fetch(offset=40, last_epoch=5, safe_end=40), now)
        answer(leading, fetch(replica_id=3, incarnation="c", offset=40, last_epoch=5, safe_end=40), now)
    output = Output()
    leading.tick(2, lambda: "change", output)
    assert leading.pending is not None
    assert leading.pending.in_sync == STATE.in_sync
    leading.appended(50, 50, Output())
    answer(leading, fetch(offset=50, last_epoch=5, safe_end=50), 3)
    assert leading.log.high_watermark == 40, "the joining replica has not acknowledged it"
    leading.observed(leading.state, leading.state_revision + 1, Output())
    assert leading.log.high_watermark == 50, "the change was not applied, and can no longer be"


def test_a_follower_that_does_not_catch_up_leaves_and_joins_again_when_it_has() -> None:
    leading = leader(msgspec.structs.replace(STATE, in_sync={1: "a", 2: "b"}))
    answer(leading, fetch(offset=40, last_epoch=5, safe_end=40), 0)
    answer(leading, fetch(offset=40, last_epoch=5, safe_end=40), 10)
    leading.appended(50, 50, Output())
    output = Output()
    leading.tick(1011, lambda: "leaves", output)
    (call,) = output.calls
    assert isinstance(call, Change)
    assert (call.state.in_sync, call.state.eligible) == ({1: "a"}, {2: "b"})
    leading.observed(call.state, 8, Output())
    assert not leading.accepts_writes
    for now in (1020, 1030):
        answer(leading, fetch(offset=50, last_epoch=5, safe_end=50), now)
    output = Output()
    leading.tick(1031, lambda: "joins", output)
    (call,) = output.calls
    assert isinstance(call, Change)
    assert (call.state.in_sync, call.state.eligible) == ({1: "a", 2: "b"}, {})
