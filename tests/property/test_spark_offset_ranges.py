"""Splitting a row limit among queues, and offset ranges into tasks: no offset is lost, repeated or out of order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sparrow.spark.source.offset_ranges import OffsetRange, apportion, plan_tasks
from sparrow.spark.source.offsets import SourceOffsets
from sparrow.wire.bodies import QueueRef

QUEUES = st.builds(QueueRef, st.sampled_from(["a", "b"]), st.sampled_from(["x", "y"]), st.integers(0, 20))
BACKLOGS = st.dictionaries(QUEUES, st.integers(1, 10_000), max_size=12)
RANGES = st.dictionaries(QUEUES, st.tuples(st.integers(0, 1000), st.integers(0, 5000)), max_size=8).map(
    lambda some: [OffsetRange(queue, start, start + rows) for queue, (start, rows) in some.items()]
)


@given(BACKLOGS, st.integers(1, 50_000))
def test_every_queue_gets_at_least_one_row_and_never_more_than_its_backlog(
    backlogs: dict[QueueRef, int], limit: int
) -> None:
    shares = apportion(backlogs, limit)
    assert set(shares) == set(backlogs)
    assert all(1 <= shares[queue] <= backlogs[queue] for queue in backlogs)


@given(BACKLOGS, st.integers(1, 50_000))
def test_the_total_exceeds_the_limit_by_at_most_one_row_a_queue(backlogs: dict[QueueRef, int], limit: int) -> None:
    total = sum(apportion(backlogs, limit).values())
    assert total <= limit + len(backlogs)
    if limit >= len(backlogs):
        # Rows left over by rounding are distributed, at most one to each queue.
        assert total >= min(limit, sum(backlogs.values())) - len(backlogs)


@given(BACKLOGS, st.integers(1, 50_000))
def test_repeated_batches_read_the_whole_backlog(backlogs: dict[QueueRef, int], limit: int) -> None:
    left = dict(backlogs)
    for _ in range(sum(backlogs.values()) + 1):
        if not left:
            return
        shares = apportion(left, limit)
        left = {queue: rows - shares[queue] for queue, rows in left.items() if rows > shares[queue]}
    raise AssertionError("a limit must allow some progress")


@given(RANGES, st.none() | st.integers(1, 40), st.sampled_from([0, 1, 7, 1000]), st.sampled_from([0, 1, 500, 100_000]))
def test_tasks_cover_every_offset_once_and_in_order(
    ranges: list[OffsetRange], partitions_min: int | None, range_rows_max: int, task_rows_target: int
) -> None:
    planned = plan_tasks(
        ranges, partitions_min=partitions_min, range_rows_max=range_rows_max, task_rows_target=task_rows_target
    )
    pieces = [piece for task in planned for piece in task]
    assert pieces == sorted(pieces)
    assert all(piece.rows > 0 for piece in pieces)
    joined: dict[QueueRef, list[int]] = {}
    for piece in pieces:
        seen = joined.setdefault(piece.queue, [piece.start, piece.start])
        assert seen[1] == piece.start, "ranges must not have gaps or overlaps"
        seen[1] = piece.end
    assert joined == {each.queue: [each.start, each.end] for each in ranges if each.rows}
    if range_rows_max:
        assert all(piece.rows <= range_rows_max for piece in pieces)
    if partitions_min is not None:
        assert len(planned) >= min(partitions_min, sum(each.rows for each in ranges))


@given(RANGES, st.integers(1, 40))
def test_the_plan_does_not_depend_on_the_order_of_the_ranges(ranges: list[OffsetRange], partitions_min: int) -> None:
    def planned(some: list[OffsetRange]) -> object:
        return plan_tasks(some, partitions_min=partitions_min, range_rows_max=100, task_rows_target=250)

    assert planned(ranges) == planned(ranges[::-1])


@given(st.dictionaries(QUEUES, st.integers(0, 1 << 50)), st.dictionaries(QUEUES, st.integers(0, 1 << 50)))
def test_offsets_round_trip_through_json_and_keys_are_sorted(
    positions: dict[QueueRef, int], first_offsets: dict[QueueRef, int]
) -> None:
    offsets = SourceOffsets(positions, first_offsets)
    said = offsets.to_json()
    assert SourceOffsets.from_json(said) == offsets
    assert said == SourceOffsets(dict(reversed(positions.items())), first_offsets).to_json()
    assert list(said["q"]) == list(SourceOffsets(dict(reversed(positions.items())), first_offsets).to_json()["q"])
