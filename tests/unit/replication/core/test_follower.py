"""A follower of a replica set: what it appends, cuts, and refuses."""

import msgspec
import pytest

from sparrow.replication.core.epochs import EpochHistory, EpochStart
from sparrow.replication.core.fetch import Chunk, Diverged, FetchAnswer, OutOfRange, Rejected
from sparrow.replication.core.follower import RETRY_MS, REWRITE_MS, Follower, truncation_point
from sparrow.replication.core.log_position import LogPosition
from sparrow.replication.core.options import ReplicaOptions
from sparrow.replication.core.output import Output


def follower(high_watermark: int = 15, *, loss_is_accepted: bool = False, must_copy: bool = False) -> Follower:
    """Return a follower in epoch 5 with the bytes 10..19 of epoch 2 and 20..29 of epoch 3."""
    log = LogPosition(10, 30, 28, high_watermark, EpochHistory([EpochStart(2, 10), EpochStart(3, 20)]))
    options = ReplicaOptions(set_id="set", replica_id=2, fetch_bytes_max=100)
    return Follower(options, "b", log, 1, 5, loss_is_accepted=loss_is_accepted, must_copy=must_copy)


def apply(to: Follower, answer: FetchAnswer) -> Output:
    output = Output()
    to.answered(answer, 0, lambda: "new", output)
    return output


def chunk(offset: int, length: int, epoch: int, high_watermark: int = 0, first: int = 10) -> Chunk:
    return Chunk(
        epoch=5,
        offset=offset,
        length=length,
        chunk_epoch=epoch,
        high_watermark=high_watermark,
        first=first,
        end=offset + length,
    )


def test_bytes_are_appended_and_acknowledged_when_they_are_flushed() -> None:
    following = follower()
    output = apply(following, chunk(30, 10, 5, high_watermark=35))
    assert output.append is not None
    assert (output.committed, output.fetch, following.log.end) == (None, None, 30)
    output = Output()
    following.stored(40, 28, 40, 0, output)
    assert (output.committed, following.log.end, following.log.safe_end) == (35, 40, 28)
    assert output.fetch is not None
    assert (output.fetch[1].offset, output.fetch[1].last_epoch, output.fetch[1].safe_end) == (40, 5, 28)
    output = Output()
    following.flushed(40, output)
    assert output.acknowledge is not None
    assert output.acknowledge[1].safe_end == 40


def test_the_beginning_of_a_record_is_continued_and_not_acknowledged() -> None:
    following = follower()
    apply(following, chunk(30, 10, 5, high_watermark=40))
    output = Output()
    following.stored(34, 34, 34, 0, output)
    assert output.committed == 34
    assert output.fetch is not None
    assert (output.fetch[1].offset, output.fetch[1].last_epoch, output.fetch[1].safe_end) == (40, 5, 34)
    apply(following, chunk(40, 2, 5, high_watermark=40))
    output = Output()
    following.stored(42, 42, 42, 0, output)
    assert output.committed == 40


def test_the_beginning_of_a_record_is_dropped_when_the_leader_has_another_one() -> None:
    following = follower()
    apply(following, chunk(30, 10, 4))
    following.stored(30, 30, 30, 0, Output())
    output = apply(following, Diverged(epoch=5, offset=40, last_epoch=4, common_epoch=3, common_end=30))
    assert output.truncate_to is None
    assert output.fetch is not None
    assert (output.fetch[1].offset, output.fetch[1].last_epoch) == (30, 3)


@pytest.mark.parametrize("late", [chunk(20, 10, 3), chunk(31, 5, 5)])
def test_bytes_that_do_not_continue_the_log_are_ignored(late: Chunk) -> None:
    following = follower()
    assert apply(following, late).append is None
    assert following.log.end == 30


def test_an_answer_of_another_epoch_is_ignored() -> None:
    following = follower()
    assert apply(following, Diverged(epoch=4, offset=30, last_epoch=3, common_epoch=2, common_end=15)) == Output()


def test_a_diverged_follower_cuts_and_asks_again() -> None:
    following = follower()
    output = apply(following, Diverged(epoch=5, offset=30, last_epoch=3, common_epoch=2, common_end=18))
    assert (output.truncate_to, following.log.end, following.log.safe_end) == (18, 18, 18)
    assert output.fetch is not None
    assert (output.fetch[1].offset, output.fetch[1].last_epoch) == (18, 2)


def test_an_answer_about_bytes_that_were_cut_since_is_ignored() -> None:
    following = follower()
    diverged = Diverged(epoch=5, offset=30, last_epoch=3, common_epoch=2, common_end=18)
    apply(following, diverged)
    apply(following, chunk(18, 12, 5, high_watermark=30))
    following.stored(30, 30, 30, 0, Output())
    assert following.log.high_watermark == 30
    for late in (diverged, OutOfRange(epoch=5, offset=30, last_epoch=3, first=10)):
        assert apply(following, late) == Output()
    assert (following.log.end, following.incarnation) == (30, "b")


def test_a_follower_whose_committed_bytes_differ_stops_and_cuts_nothing() -> None:
    following = follower(high_watermark=25)
    output = apply(following, Diverged(epoch=5, offset=30, last_epoch=3, common_epoch=2, common_end=18))
    assert output.alarm is not None
    assert "committed bytes up to 25" in output.alarm
    assert (output.truncate_to, output.fetch, following.log.end) == (None, None, 30)


def test_an_operator_may_accept_the_loss() -> None:
    following = follower(high_watermark=25, loss_is_accepted=True)
    output = apply(following, Diverged(epoch=5, offset=30, last_epoch=3, common_epoch=2, common_end=18))
    assert (output.alarm, output.truncate_to, following.log.high_watermark) == (None, 18, 18)


@pytest.mark.parametrize(
    ("common", "expected"), [((3, 25), 25), ((3, 99), 30), ((2, 15), 15), ((2, 99), 20), ((1, 50), 10)]
)
def test_the_cut_is_at_the_end_of_the_newest_common_epoch(common: tuple[int, int], expected: int) -> None:
    diverged = Diverged(epoch=5, offset=30, last_epoch=3, common_epoch=common[0], common_end=common[1])
    assert truncation_point(follower().log, diverged) == expected


def test_a_follower_that_starts_again_has_a_new_incarnation() -> None:
    following = follower()
    output = apply(following, OutOfRange(epoch=5, offset=30, last_epoch=3, first=70))
    assert (output.restart_at, following.incarnation) == (70, "new")
    assert output.fetch is not None
    assert (output.fetch[1].offset, output.fetch[1].last_epoch, output.fetch[1].incarnation) == (70, 0, "new")
    assert following.log.high_watermark == 70


def test_a_rejected_fetch_is_repeated_after_a_moment() -> None:
    following = follower()
    assert apply(following, Rejected(epoch=5, reason="not ready")).fetch is None
    for now, is_sent in ((RETRY_MS - 1, False), (RETRY_MS, True)):
        output = Output()
        following.tick(now, output)
        assert (output.fetch is not None) is is_sent


def test_a_fetch_without_an_answer_is_repeated_after_its_time_out() -> None:
    following = follower()
    for now, is_sent in ((0, True), (1499, False), (1500, True)):
        output = Output()
        following.tick(now, output)
        assert (output.fetch is not None) is is_sent


def test_more_bytes_are_fetched_while_a_chunk_is_written() -> None:
    following = follower()
    output = apply(following, msgspec.structs.replace(chunk(30, 10, 5), end=90))
    assert output.append is not None
    assert output.fetch_ahead is not None
    assert (output.fetch_ahead[1].offset, output.fetch_ahead[1].safe_end) == (40, 28)
    output = Output()
    following.stored(40, 40, 40, 0, output)
    assert output.fetch is None, "one fetch at a time"
    assert output.acknowledge is not None
    assert output.acknowledge[1].safe_end == 40


def test_bytes_that_could_not_be_written_are_fetched_again_after_a_pause() -> None:
    following = follower()
    apply(following, chunk(30, 10, 5))
    following.not_stored(30, 100)
    output = Output()
    following.tick(100 + REWRITE_MS - 1, output)
    assert output.fetch is None
    following.tick(100 + REWRITE_MS, output)
    assert output.fetch is not None
    assert (output.fetch[1].offset, output.fetch[1].last_epoch) == (30, 3)


def test_a_group_without_its_end_is_not_committed_here() -> None:
    following = follower()
    apply(following, chunk(30, 10, 5, high_watermark=40))
    output = Output()
    following.stored(40, 33, 33, 0, output)
    assert output.committed == 33


def test_a_damaged_log_is_not_continued() -> None:
    following = follower(must_copy=True)
    output = Output()
    following.tick(0, output)
    assert output.fetch is not None
    assert (output.fetch[1].offset, output.fetch[1].last_epoch, output.fetch[1].safe_end) == (-1, 0, -1)
    output = apply(following, OutOfRange(epoch=5, offset=-1, last_epoch=0, first=10))
    assert output.restart_at == 10
    assert output.fetch is not None
    assert output.fetch[1].offset == 10


def test_what_the_leader_deleted_is_deleted_once_the_leader_s_high_watermark_is_reached() -> None:
    following = follower()
    apply(following, msgspec.structs.replace(chunk(30, 5, 5, high_watermark=38, first=25), end=40))
    output = Output()
    following.stored(35, 35, 35, 0, output)
    assert (output.delete_before, following.log.first) == (None, 10), "state may only be in the old bytes"
    apply(following, chunk(35, 5, 5, high_watermark=38, first=25))
    output = Output()
    following.stored(40, 40, 40, 0, output)
    assert (output.delete_before, following.log.first) == (25, 25)
