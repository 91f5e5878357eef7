"""Ranges of messages that groups shall get again: recorded, not copied.

A request becomes rows of at most 500 ids in the resend table of its priority. Each group reads these tables with an
offset of its own (`resend_offset_…`) and skips rows that are for other groups. A group that is registered later than a
request was made does not get its ranges.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from sparrow.model.errors import Refused
from sparrow.model.priority import read_queue_id
from sparrow.store.sql.append.insert import take_ids
from sparrow.store.sql.drivers.database import SqlSession, StoreDatabase
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.schema.table_names import table_name
from sparrow.store.sql.state.catalog import StoreCatalog
from sparrow.store.sql.statements import lanes as lane_statements
from sparrow.store.sql.statements import resends as statements
from sparrow.store.sql.statements.state import offsets as offset_statements
from sparrow.store.sql.upserts import insert_if_absent

IDS_PER_ROW = 500
"""A row is sent and acknowledged as a whole."""
_ROWS_PER_READ = 100


class ResendRange(NamedTuple):
    """A row: messages `start` to `end` of the lane of messages, both included."""

    id: int
    start: int
    end: int
    attempt: int


class ResendRanges:
    """The resend tables of all topics."""

    def __init__(self, database: StoreDatabase, catalog: StoreCatalog, *, now_ms: Callable[[], int]) -> None:
        self._database, self._catalog, self._now_ms = database, catalog, now_ms

    async def request(self, lane: Lane, group: str | None, start: int, end: int, *, token: int | None = None) -> int:
        """Record that a group (None: every group) shall get messages again; return how many rows that took."""
        if start < 1 or start > end:
            raise Refused(f"messages {start} to {end} are not a range: give the first id, at least 1, then the last")
        resend_lane = self._resend_lane(lane)
        chunks = [(at, min(at + IDS_PER_ROW - 1, end)) for at in range(start, end + 1, IDS_PER_ROW)]
        async with self._database.transaction() as session:
            next_id, _ = await take_ids(session, resend_lane, len(chunks), self._now_ms())
            for index, (first, last) in enumerate(chunks):
                await session.execute(
                    statements.insert_range(resend_lane.table),
                    id=next_id + index,
                    group_id=group,
                    first=first,
                    last=last,
                    priority=lane.priority.label,
                    now=self._now_ms(),
                    token=token,
                )
        return len(chunks)

    async def register_group(self, group: str, lane: Lane) -> None:
        """Let a group get the ranges that are requested from now on."""
        resend_lane = self._resend_lane(lane)
        ((next_id,),) = await self._database.fetch(lane_statements.SELECT_NEXT_ID, lane=resend_lane.number)
        await insert_if_absent(
            self._database,
            _offset_table(lane),
            group_id=group,
            offset=next_id - 1,
            priority=lane.priority.label,
            updated_at=self._now_ms(),
        )

    async def next_ranges(self, group: str, lane: Lane) -> tuple[list[ResendRange], int]:
        """Return the ranges that the group has not got yet, and the id of the last row examined."""
        offset = await self.offset(group, lane)
        if offset is None:
            return [], 0
        rows = await self._database.fetch(
            statements.select_ranges_after(self._resend_lane(lane).table), after=offset, count=_ROWS_PER_READ
        )
        ranges = [
            ResendRange(number, start, end, attempt)
            for number, for_group, start, end, attempt in rows
            if for_group is None or for_group == group
        ]
        return ranges, rows[-1][0] if rows else offset

    async def offset(self, group: str, lane: Lane) -> int | None:
        """Return the last row that the group has finished; None if it was never registered."""
        found = await self._database.fetch(
            offset_statements.select_offset(_offset_table(lane)), group_id=group, priority=lane.priority.label
        )
        return found[0][0] if found else None

    async def mark_done(self, session: SqlSession, group: str, lane: Lane, row: int) -> bool:
        """Mark a row and those before it as finished by a group; return False if they were already."""
        advanced = await session.execute(
            statements.advance_offset(_offset_table(lane)),
            row=row,
            now=self._now_ms(),
            group_id=group,
            priority=lane.priority.label,
        )
        return advanced > 0

    async def lane_ends(self) -> dict[int, int]:
        """Return the next id of each resend lane."""
        return dict(await self._database.fetch(lane_statements.SELECT_RESEND_ENDS))

    async def groups(self, lane: Lane) -> list[str]:
        """Return the groups that are registered on a lane."""
        found = await self._database.fetch(statements.select_groups(_offset_table(lane)), priority=lane.priority.label)
        return [group for (group,) in found]

    def _resend_lane(self, lane: Lane) -> Lane:
        _, queue = self._catalog.lanes_by_number[lane.number]
        found = self._catalog.resend_lanes.get((queue.topic, read_queue_id(lane.part, lane.priority)))
        if found is None:
            raise Refused(f"messages of {queue.topic!r} cannot be resent: it is an internal topic of the platform")
        return found


def _offset_table(lane: Lane) -> str:
    return table_name("resend_offset", lane.topic, lane.part)
