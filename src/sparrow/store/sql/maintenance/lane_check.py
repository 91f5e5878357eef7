"""Whether one lane holds together: dense ids, times in order, and nothing that points at what is not there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.maintenance.id_ranges import IdRange, merge_ranges, missing_ids, subtract
from sparrow.store.sql.schema.table_names import table_name

IDS_PER_QUERY = 50_000
KEYS_PER_QUERY = 5_000
FINDINGS_SHOWN_MAX = 5
"""Of many findings of one kind about one table, so many are told."""


class CheckFinding(NamedTuple):
    """Something that is not as it should be."""

    where: str
    """A table or a topic."""
    what: str


class _Bounds(NamedTuple):
    first_id: int
    next_id: int


async def check_lane(database: StoreDatabase, lane: Lane, progress: Callable[[int], None]) -> list[CheckFinding]:
    """What is wrong with one lane. `progress` is told how many of its ids were looked at."""
    findings = await _beyond(database, lane)
    bounds = await _bounds(database, lane)
    if bounds is None:
        return []  # deleted meanwhile
    findings += await _holes_and_times(database, lane, bounds, progress)
    if lane.kind == "m":
        findings += await _offsets(database, lane, "offset")
        findings += await _keys(database, lane)
    else:
        findings += await _offsets(database, lane, "resend_offset")
        findings += await _ranges(database, lane)
    return findings


async def _bounds(database: StoreDatabase, lane: Lane) -> _Bounds | None:
    rows = await database.fetch("SELECT first_id, next_id FROM hermes_lane WHERE lane = :lane", lane=lane.number)
    return _Bounds(*rows[0]) if rows else None


async def _beyond(database: StoreDatabase, lane: Lane) -> list[CheckFinding]:
    ((newest, next_id),) = await database.fetch(
        f'SELECT (SELECT MAX(id) FROM "{lane.table}"), (SELECT next_id FROM hermes_lane WHERE lane = :lane)',
        lane=lane.number,
    )
    if newest is None or next_id is None or newest < next_id:
        return []
    return [
        CheckFinding(
            lane.table,
            f"holds id {newest:,}, the next to be given is {next_id:,}: lane {lane.number} must skip to {newest + 1:,}",
        )
    ]


async def _holes_and_times(
    database: StoreDatabase, lane: Lane, bounds: _Bounds, progress: Callable[[int], None]
) -> list[CheckFinding]:
    """Density and order, a range of ids after the other."""
    gaps = await _gaps(database, lane)
    holes: list[IdRange] = []
    backwards: list[IdRange] = []
    latest = 0
    for start, end in _chunks(subtract([bounds], gaps)):
        ((count, oldest, newest, back),) = await database.fetch(
            "SELECT COUNT(*), MIN(at), MAX(at), SUM(CASE WHEN at < before_it THEN 1 ELSE 0 END) FROM"
            ' (SELECT "timestamp" AS at, LAG("timestamp") OVER (ORDER BY id) AS before_it'
            f' FROM "{lane.table}" WHERE id >= :start AND id < :until) looked_at',
            start=start,
            until=end,
        )
        if count != end - start:
            ids = await database.fetch(
                f'SELECT id FROM "{lane.table}" WHERE id >= :start AND id < :until ORDER BY id', start=start, until=end
            )
            holes += missing_ids((number for (number,) in ids), (start, end))
        if back or (oldest is not None and oldest < latest):
            backwards.append((start, end))
        latest = max(latest, newest or 0)
        progress(end - bounds.first_id)
    registered = 0
    for start, end in gaps:
        ((count,),) = await database.fetch(
            f'SELECT COUNT(*) FROM "{lane.table}" WHERE id >= :start AND id < :until', start=start, until=end
        )
        registered += count
    now = await _bounds(database, lane)
    if now is None:
        return []
    return [
        *_told_holes(lane, [(max(a, now.first_id), b) for a, b in merge_ranges(holes) if b > now.first_id]),
        *(
            CheckFinding(lane.table, f"has times that go back as ids grow, between {start:,} and {end - 1:,}")
            for start, end in backwards[:FINDINGS_SHOWN_MAX]
        ),
        *(
            [CheckFinding(lane.table, f"{registered:,} ids are registered as holes, but hold messages")]
            if registered
            else []
        ),
    ]


def _chunks(ranges: Iterable[IdRange]) -> Iterator[IdRange]:
    for first, end in ranges:
        for start in range(first, end, IDS_PER_QUERY):
            yield start, min(start + IDS_PER_QUERY, end)


def _told_holes(lane: Lane, holes: list[IdRange]) -> Iterator[CheckFinding]:
    for start, end in holes[:FINDINGS_SHOWN_MAX]:
        which = f"id {start:,} is" if end - start == 1 else f"ids {start:,} to {end - 1:,} are"
        yield CheckFinding(lane.table, f"{which} missing")
    if len(holes) > FINDINGS_SHOWN_MAX:
        ids = sum(end - start for start, end in holes)
        yield CheckFinding(lane.table, f"has {len(holes):,} holes in all, {ids:,} ids are missing")


def _told_registered(lane: Lane, count: int) -> Iterator[CheckFinding]:
    if count:
        yield CheckFinding(lane.table, f"{count:,} ids are registered as holes, but hold messages")


async def _gaps(database: StoreDatabase, lane: Lane) -> list[IdRange]:
    rows = await database.fetch(
        'SELECT "start", "end" FROM hermes_gap WHERE lane = :lane ORDER BY "start"', lane=lane.number
    )
    return [(start, end + 1) for start, end in rows]


async def _offsets(database: StoreDatabase, lane: Lane, prefix: str) -> list[CheckFinding]:
    name = table_name(prefix, lane.topic, lane.part)
    rows = await database.fetch(
        f'SELECT o.group_id, o."offset", l.next_id FROM "{name}" o JOIN hermes_lane l ON l.lane = :lane'
        ' WHERE o.priority = :priority AND o."offset" >= l.next_id ORDER BY o.group_id',
        lane=lane.number,
        priority=lane.priority.label,
    )
    return [
        CheckFinding(name, f"group {group} has read {lane.priority.label} up to {offset:,}, there are {next_id - 1:,}")
        for group, offset, next_id in rows
    ]


async def _ranges(database: StoreDatabase, lane: Lane) -> list[CheckFinding]:
    rows = await database.fetch(
        f'SELECT r.id, r."start", r."end", r.priority, l.next_id FROM "{lane.table}" r JOIN hermes_lane l'
        " ON l.topic = :topic AND l.part = :part AND l.kind = 'm' AND l.priority = :priority"
        ' WHERE r."end" >= l.next_id OR r."start" < 1 OR r.priority <> :priority ORDER BY r.id',
        topic=lane.topic,
        part=lane.part,
        priority=lane.priority.label,
    )
    told = [
        CheckFinding(lane.table, f"row {number:,} resends {start:,} to {end:,} of {word}, there are {next_id - 1:,}")
        for number, start, end, word, next_id in rows[:FINDINGS_SHOWN_MAX]
    ]
    return told + (
        [CheckFinding(lane.table, f"has {len(rows):,} such ranges in all")] if len(rows) > FINDINGS_SHOWN_MAX else []
    )


async def _keys(database: StoreDatabase, lane: Lane) -> list[CheckFinding]:
    """Keys of what retention took are none of our business."""
    name = table_name("key", lane.topic, lane.part)
    after, count = b"", 0
    examples: list[CheckFinding] = []
    while True:
        last = await database.fetch(
            f'SELECT ref_key FROM "{name}" WHERE ref_key > :after ORDER BY ref_key LIMIT 1 OFFSET {KEYS_PER_QUERY - 1}',
            after=after,
        )
        until = bytes(last[0][0]) if last else None
        rows = await database.fetch(
            f'SELECT k.ref_key, k.id FROM "{name}" k JOIN hermes_lane l ON l.lane = :lane'
            f' LEFT JOIN "{lane.table}" m ON m.id = k.id'
            " WHERE k.priority = :priority AND k.id >= l.first_id AND m.id IS NULL AND k.ref_key > :after"
            + (" AND k.ref_key <= :upto" if until is not None else ""),
            lane=lane.number,
            priority=lane.priority.label,
            after=after,
            **({"upto": until} if until is not None else {}),
        )
        count += len(rows)
        examples += [
            CheckFinding(
                name,
                f"key {bytes(key).decode(errors='replace')!r} points at {lane.priority.label} {number:,},"
                " which is not there",
            )
            for key, number in rows[: FINDINGS_SHOWN_MAX - len(examples)]
        ]
        if until is None:
            break
        after = until
    return examples + ([CheckFinding(name, f"has {count:,} such keys in all")] if count > len(examples) else [])
