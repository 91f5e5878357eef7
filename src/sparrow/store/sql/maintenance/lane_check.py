"""The consistency check of one lane: dense ids, times in order, and no reference to a missing message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.maintenance.id_ranges import IdRange, merge_ranges, missing_ids, subtract
from sparrow.store.sql.schema.table_names import table_name
from sparrow.store.sql.statements import checks as statements
from sparrow.store.sql.statements import lanes as lane_statements
from sparrow.store.sql.statements import messages as message_statements

IDS_PER_QUERY = 50_000
KEYS_PER_QUERY = 5_000
FINDINGS_SHOWN_MAX = 5
"""Findings of one kind about one table that are listed."""


class CheckFinding(NamedTuple):
    """Something that is wrong."""

    where: str
    """A table or a topic."""
    what: str


class _Bounds(NamedTuple):
    first_id: int
    next_id: int


async def check_lane(database: StoreDatabase, lane: Lane, progress: Callable[[int], None]) -> list[CheckFinding]:
    """Return what is wrong with one lane. `progress` gets the count of ids examined."""
    findings = await _check_newest_id(database, lane)
    bounds = await _bounds(database, lane)
    if bounds is None:
        return []  # the topic was deleted meanwhile
    findings += await _check_ids_and_times(database, lane, bounds, progress)
    if lane.kind == "m":
        findings += await _check_offsets(database, lane, "offset")
        findings += await _check_keys(database, lane)
    else:
        findings += await _check_offsets(database, lane, "resend_offset")
        findings += await _check_ranges(database, lane)
    return findings


async def _bounds(database: StoreDatabase, lane: Lane) -> _Bounds | None:
    rows = await database.fetch(lane_statements.SELECT_BOUNDS, lane=lane.number)
    return _Bounds(*rows[0]) if rows else None


async def _check_newest_id(database: StoreDatabase, lane: Lane) -> list[CheckFinding]:
    ((newest, next_id),) = await database.fetch(
        statements.select_newest_id(lane.table),
        lane=lane.number,
    )
    if newest is None or next_id is None or newest < next_id:
        return []
    return [
        CheckFinding(
            lane.table,
            f"has id {newest:,}, but the next id of its lane is {next_id:,}:"
            f" run `sparrow store skip --lane {lane.number} --to {newest + 1}`",
        )
    ]


async def _check_ids_and_times(
    database: StoreDatabase, lane: Lane, bounds: _Bounds, progress: Callable[[int], None]
) -> list[CheckFinding]:
    """Check that ids are dense and times in order, one range of ids after the other."""
    gaps = await _gaps(database, lane)
    holes: list[IdRange] = []
    backwards: list[IdRange] = []
    latest = 0
    for start, end in _chunks(subtract([bounds], gaps)):
        ((count, oldest, newest, back),) = await database.fetch(
            statements.summarize_ids(lane.table),
            start=start,
            until=end,
        )
        if count != end - start:
            ids = await database.fetch(statements.select_ids(lane.table), start=start, until=end)
            holes += missing_ids((number for (number,) in ids), (start, end))
        if back or (oldest is not None and oldest < latest):
            backwards.append((start, end))
        latest = max(latest, newest or 0)
        progress(end - bounds.first_id)
    registered = 0
    for start, end in gaps:
        ((count,),) = await database.fetch(statements.count_ids(lane.table), start=start, until=end)
        registered += count
    now = await _bounds(database, lane)
    if now is None:
        return []
    return [
        *_report_holes(lane, [(max(a, now.first_id), b) for a, b in merge_ranges(holes) if b > now.first_id]),
        *(
            CheckFinding(lane.table, f"has store times that decrease as ids grow, between {start:,} and {end - 1:,}")
            for start, end in backwards[:FINDINGS_SHOWN_MAX]
        ),
        *(
            [CheckFinding(lane.table, f"{registered:,} ids are registered as holes, but have messages")]
            if registered
            else []
        ),
    ]


def _chunks(ranges: Iterable[IdRange]) -> Iterator[IdRange]:
    for first, end in ranges:
        for start in range(first, end, IDS_PER_QUERY):
            yield start, min(start + IDS_PER_QUERY, end)


def _report_holes(lane: Lane, holes: list[IdRange]) -> Iterator[CheckFinding]:
    for start, end in holes[:FINDINGS_SHOWN_MAX]:
        which = f"id {start:,} is" if end - start == 1 else f"ids {start:,} to {end - 1:,} are"
        yield CheckFinding(lane.table, f"{which} missing")
    if len(holes) > FINDINGS_SHOWN_MAX:
        ids = sum(end - start for start, end in holes)
        yield CheckFinding(lane.table, f"has {len(holes):,} holes in all, {ids:,} ids are missing")


async def _gaps(database: StoreDatabase, lane: Lane) -> list[IdRange]:
    rows = await database.fetch(statements.SELECT_GAPS, lane=lane.number)
    return [(start, end + 1) for start, end in rows]


async def _check_offsets(database: StoreDatabase, lane: Lane, prefix: str) -> list[CheckFinding]:
    name = table_name(prefix, lane.topic, lane.part)
    rows = await database.fetch(
        statements.select_offsets_beyond_end(name),
        lane=lane.number,
        priority=lane.priority.label,
    )
    return [
        CheckFinding(
            name,
            f"group {group} has committed {lane.priority.label} up to {offset:,}, but the last id is {next_id - 1:,}",
        )
        for group, offset, next_id in rows
    ]


async def _check_ranges(database: StoreDatabase, lane: Lane) -> list[CheckFinding]:
    rows = await database.fetch(
        statements.select_bad_ranges(lane.table),
        topic=lane.topic,
        part=lane.part,
        priority=lane.priority.label,
    )
    listed = [
        CheckFinding(
            lane.table, f"row {number:,} resends {start:,} to {end:,} of {word}, but the last id is {next_id - 1:,}"
        )
        for number, start, end, word, next_id in rows[:FINDINGS_SHOWN_MAX]
    ]
    return listed + (
        [CheckFinding(lane.table, f"has {len(rows):,} such ranges in all")] if len(rows) > FINDINGS_SHOWN_MAX else []
    )


async def _check_keys(database: StoreDatabase, lane: Lane) -> list[CheckFinding]:
    """Find keys without a message, except keys of messages that retention has deleted."""
    name = table_name("key", lane.topic, lane.part)
    after, count = b"", 0
    examples: list[CheckFinding] = []
    while True:
        last = await database.fetch(message_statements.select_nth_key(name, KEYS_PER_QUERY), after=after)
        until = bytes(last[0][0]) if last else None
        rows = await database.fetch(
            statements.select_keys_without_message(name, lane.table, is_last=until is None),
            lane=lane.number,
            priority=lane.priority.label,
            after=after,
            **({"upto": until} if until is not None else {}),
        )
        count += len(rows)
        examples += [
            CheckFinding(
                name,
                f"key {bytes(key).decode(errors='replace')!r} refers to {lane.priority.label} {number:,},"
                " which does not exist",
            )
            for key, number in rows[: FINDINGS_SHOWN_MAX - len(examples)]
        ]
        if until is None:
            break
        after = until
    return examples + ([CheckFinding(name, f"has {count:,} such keys in all")] if count > len(examples) else [])
