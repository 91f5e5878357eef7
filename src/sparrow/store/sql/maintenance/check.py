"""Whether a database holds together: to be asked after a restore, an accident, or out of curiosity.

1. Nothing is changed. A live database may be checked: whatever is appended or trimmed meanwhile is no finding.
2. Big tables are looked at by ranges of ids, none of which takes long.

`skip_ids` is what an operator does about ids that are lost for good: it registers the hole, so that no id is given
twice.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sparrow.model.errors import Refused
from sparrow.model.priority import Priority
from sparrow.model.topic import Topic
from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.drivers.errors import DatabaseRefused
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.maintenance.id_ranges import IdRange, missing_ids
from sparrow.store.sql.maintenance.lane_check import CheckFinding, check_lane
from sparrow.store.sql.schema import ddl
from sparrow.store.sql.schema.table_names import table_suffix
from sparrow.store.sql.state.catalog import has_lanes


async def check_store(
    database: StoreDatabase, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[CheckFinding]:
    """Everything that is wrong. `progress` is told how many rows were looked at, and how many there are."""
    try:
        findings = await _schema(database)
    except DatabaseRefused as refused:
        return [CheckFinding("hermes_schema", f"cannot be read, so this is no store of Sparrow's: {refused.why}")]
    if findings:
        return findings
    lanes: list[tuple[Lane, int]] = []
    for topic, state in await _topics(database):
        if state != "active":
            findings.append(CheckFinding(topic.name, f"is half-way ({state}): the next broker that starts finishes it"))
            continue
        known, absent = await _lanes_of(database, topic)
        lanes += known
        findings += absent
    findings += await _strays(database)
    total, done = sum(size for _, size in lanes), 0
    for lane, size in lanes:

        def looked_at(ids: int, before: int = done) -> None:
            progress(before + ids, total)

        try:
            findings += await check_lane(database, lane, looked_at)
        except DatabaseRefused as refused:
            findings.append(CheckFinding(lane.table, f"cannot be read: {refused.why}"))
        done += size
    progress(total, total)
    return findings


# -- what there should be ---------------------------------------------------------------------------------------------


async def _schema(database: StoreDatabase) -> list[CheckFinding]:
    ((version,),) = await database.fetch("SELECT MAX(version) FROM hermes_schema")
    if version == ddl.SCHEMA_VERSION:
        return []
    said = "has no version" if version is None else f"is of version {version}"
    return [
        CheckFinding("hermes_schema", f"{said}, this Sparrow knows {ddl.SCHEMA_VERSION}: nothing else was looked at")
    ]


async def _topics(database: StoreDatabase) -> list[tuple[Topic, str]]:
    rows = await database.fetch("SELECT options, state FROM hermes_topic ORDER BY topic")
    return [(msgspec.json.decode(options, type=Topic), state) for options, state in rows]


async def _lanes_of(database: StoreDatabase, topic: Topic) -> tuple[list[tuple[Lane, int]], list[CheckFinding]]:
    rows = await database.fetch(
        "SELECT lane, topic, part, kind, priority, first_id, next_id FROM hermes_lane WHERE topic = :topic",
        topic=table_suffix(topic.name),
    )
    found = [
        (Lane(number, name, part, "m" if kind == "m" else "r", Priority[word.upper()]), next_id - first_id)
        for number, name, part, kind, word, first_id, next_id in rows
    ]
    known = {(lane.part, lane.kind, lane.priority) for lane, _ in found}
    kinds = "mr" if has_lanes(topic) else "m"
    priorities = tuple(Priority) if has_lanes(topic) else (Priority.MIDDLE,)
    absent = [
        CheckFinding(topic.name, f"has no lane for part {part}, {kind}, {priority.label}")
        for part in range(topic.write_queues)
        for kind in kinds
        for priority in priorities
        if (part, kind, priority) not in known
    ]
    return found, absent


async def _strays(database: StoreDatabase) -> list[CheckFinding]:
    rows = await database.fetch(
        "SELECT DISTINCT topic FROM hermes_lane WHERE topic NOT IN (SELECT topic FROM hermes_topic) ORDER BY topic"
    )
    return [CheckFinding("hermes_lane", f"has lanes of topic {topic}, which does not exist") for (topic,) in rows]


# -- after an accepted loss -------------------------------------------------------------------------------------------


async def skip_ids(database: StoreDatabase, lane: int, to: int, reason: str, now_ms: int) -> list[IdRange]:
    """Let the next message of a lane have the id `to`; the holes that were registered. Messages in between stay."""
    async with database.transaction() as session:
        # Nobody appends from here on: the row is ours until the end.
        if not await session.execute("UPDATE hermes_lane SET last_ts = last_ts WHERE lane = :lane", lane=lane):
            raise Refused(f"there is no lane {lane}: hermes_lane lists them")
        ((topic, part, kind, word, next_id),) = await session.fetch(
            "SELECT topic, part, kind, priority, next_id FROM hermes_lane WHERE lane = :lane", lane=lane
        )
        if to <= next_id:
            raise Refused(f"lane {lane} is at {next_id} already: it can only skip forwards")
        found = Lane(lane, topic, part, "m" if kind == "m" else "r", Priority[word.upper()])
        rows = await session.fetch(
            f'SELECT id, "timestamp" FROM "{found.table}" WHERE id >= :start AND id < :until ORDER BY id',
            start=next_id,
            until=to,
        )
        holes = list(missing_ids((number for number, _ in rows), (next_id, to)))
        for start, end in holes:
            await session.execute(
                'INSERT INTO hermes_gap (lane, "start", "end", reason, at)'
                " VALUES (:lane, :first, :last, :reason, :now)",
                lane=lane,
                first=start,
                last=end - 1,
                reason=reason,
                now=now_ms,
            )
        latest = max((at for _, at in rows), default=0)
        await session.execute(
            "UPDATE hermes_lane SET next_id = :next,"
            " last_ts = CASE WHEN last_ts < :latest THEN :latest ELSE last_ts END WHERE lane = :lane",
            next=to,
            latest=latest,
            lane=lane,
        )
    return holes
