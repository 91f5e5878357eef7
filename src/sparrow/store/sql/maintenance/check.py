"""The consistency check of a database (`sparrow store check`), and registering lost ids (`sparrow store skip`).

1. The check changes nothing. It may run while brokers use the database: appends and retention cause no findings.
2. It reads large tables by ranges of ids; no query takes long.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sparrow.model.errors import Refused
from sparrow.model.priority import Priority
from sparrow.model.topic import Topic
from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.drivers.errors import DatabaseRefused
from sparrow.store.sql.lanes import Lane, lane_of_row
from sparrow.store.sql.maintenance.id_ranges import IdRange, missing_ids
from sparrow.store.sql.maintenance.lane_check import CheckFinding, check_lane
from sparrow.store.sql.schema.ddl import SCHEMA_VERSION
from sparrow.store.sql.schema.table_names import table_suffix
from sparrow.store.sql.state.catalog import has_lanes
from sparrow.store.sql.statements import checks as check_statements
from sparrow.store.sql.statements import lanes as lane_statements
from sparrow.store.sql.statements import messages as message_statements
from sparrow.store.sql.statements.state import catalog as catalog_statements


async def check_store(
    database: StoreDatabase, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[CheckFinding]:
    """Return everything that is wrong. `progress` gets the count of rows examined, and of all rows."""
    try:
        findings = await _check_version(database)
    except DatabaseRefused as refused:
        return [CheckFinding("hermes_schema", f"cannot be read, so this is not a Sparrow store: {refused.why}")]
    if findings:
        return findings
    lanes: list[tuple[Lane, int]] = []
    for topic, state in await _topics(database):
        if state != "active":
            findings.append(
                CheckFinding(topic.name, f"is unfinished ({state}): the next broker that starts finishes it")
            )
            continue
        known, absent = await _lanes_of(database, topic)
        lanes += known
        findings += absent
    findings += await _lanes_without_topic(database)
    total, done = sum(size for _, size in lanes), 0
    for lane, size in lanes:

        def examined(ids: int, before: int = done) -> None:
            progress(before + ids, total)

        try:
            findings += await check_lane(database, lane, examined)
        except DatabaseRefused as refused:
            findings.append(CheckFinding(lane.table, f"cannot be read: {refused.why}"))
        done += size
    progress(total, total)
    return findings


# -- what must exist ---------------------------------------------------------------------------------------------------


async def _check_version(database: StoreDatabase) -> list[CheckFinding]:
    ((version,),) = await database.fetch(catalog_statements.SELECT_SCHEMA_VERSION)
    if version == SCHEMA_VERSION:
        return []
    if version is None:
        problem = "has no version: the next broker that starts finishes creating the tables"
    elif version < SCHEMA_VERSION:
        problem = f"has version {version}: the next broker that starts migrates it to {SCHEMA_VERSION}"
    else:
        problem = (
            f"has version {version}, but this Sparrow supports versions up to {SCHEMA_VERSION}: install a newer one"
        )
    return [CheckFinding("hermes_schema", f"{problem}; nothing else was checked")]


async def _topics(database: StoreDatabase) -> list[tuple[Topic, str]]:
    rows = await database.fetch(catalog_statements.SELECT_TOPICS)
    return [(msgspec.json.decode(options, type=Topic), state) for options, state in rows]


async def _lanes_of(database: StoreDatabase, topic: Topic) -> tuple[list[tuple[Lane, int]], list[CheckFinding]]:
    """Return the lanes of a topic with their sizes, and findings for missing ones."""
    rows = await database.fetch(lane_statements.SELECT_OF_TOPIC, topic=table_suffix(topic.name))
    found = [(lane_of_row(*columns), next_id - first_id) for *columns, first_id, next_id in rows]
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


async def _lanes_without_topic(database: StoreDatabase) -> list[CheckFinding]:
    rows = await database.fetch(lane_statements.SELECT_TOPICS_WITHOUT_ROW)
    return [CheckFinding("hermes_lane", f"has lanes of topic {topic}, which does not exist") for (topic,) in rows]


# -- after an accepted loss --------------------------------------------------------------------------------------------


async def skip_ids(database: StoreDatabase, lane: int, to: int, reason: str, now_ms: int) -> list[IdRange]:
    """Continue a lane at id `to`, so that no lost id is assigned again; return the holes that were registered.

    Messages that exist in between stay.
    """
    async with database.transaction() as session:
        if not await session.execute(lane_statements.LOCK, lane=lane):
            raise Refused(f"there is no lane {lane}: table hermes_lane lists the lanes")
        ((*columns, next_id),) = await session.fetch(lane_statements.SELECT_LANE, lane=lane)
        if to <= next_id:
            raise Refused(f"lane {lane} is at id {next_id} already: give an id above that")
        found = lane_of_row(*columns)
        rows = await session.fetch(message_statements.select_ids_and_times(found.table), start=next_id, until=to)
        holes = list(missing_ids((number for number, _ in rows), (next_id, to)))
        for start, end in holes:
            await session.execute(
                check_statements.INSERT_GAP, lane=lane, first=start, last=end - 1, reason=reason, now=now_ms
            )
        latest = max((store_ms for _, store_ms in rows), default=0)
        await session.execute(lane_statements.SKIP_TO, next=to, latest=latest, lane=lane)
    return holes
