"""Ranges of messages that a group is to see again: recorded, not copied.

A request becomes rows of at most 500 ids in the resend table of its priority. Each group walks these tables with an
offset of its own (`resend_offset_...`) and passes over what is meant for others. What a group does not know when it is
opened was asked for before its time, and is not for it.
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
from sparrow.store.sql.state.catalog import StoreCatalog, insert_if_absent

IDS_PER_ROW = 500
"""One row is one unit of progress."""
_ROWS_A_READ = 100


class ResendRange(NamedTuple):
    """A row: messages `start` to `end` of the same lane, both included."""

    id: int
    start: int
    end: int
    attempt: int


class ResendRanges:
    """The resend tables of all topics."""

    def __init__(self, database: StoreDatabase, catalog: StoreCatalog, *, now_ms: Callable[[], int]) -> None:
        self._database, self._catalog, self._now_ms = database, catalog, now_ms

    async def request(self, lane: Lane, group: str | None, start: int, end: int, *, token: int | None = None) -> int:
        """Record that a group (None: all of them) is to see messages again; how many rows that took."""
        if start < 1 or start > end:
            raise Refused(f"messages {start} to {end} are no range: say the first, then the last, counted from 1")
        resend_lane = self._lane(lane)
        chunks = [(at, min(at + IDS_PER_ROW - 1, end)) for at in range(start, end + 1, IDS_PER_ROW)]
        async with self._database.transaction() as session:
            next_id, _ = await take_ids(session, resend_lane, len(chunks), self._now_ms())
            for at, (first, last) in enumerate(chunks):
                await session.execute(
                    f'INSERT INTO "{resend_lane.table}"'
                    ' (id, group_id, "start", "end", priority, "timestamp", token, attempt)'
                    " VALUES (:id, :group_id, :first, :last, :priority, :now, :token, 0)",
                    id=next_id + at,
                    group_id=group,
                    first=first,
                    last=last,
                    priority=lane.priority.label,
                    now=self._now_ms(),
                    token=token,
                )
        return len(chunks)

    async def register_group(self, group: str, lane: Lane) -> None:
        """From now on the group hears of what is to be sent again."""
        resend_lane = self._lane(lane)
        ((next_id,),) = await self._database.fetch(
            "SELECT next_id FROM hermes_lane WHERE lane = :lane", lane=resend_lane.number
        )
        await insert_if_absent(
            self._database,
            table_name("resend_offset", lane.topic, lane.part),
            group_id=group,
            offset=next_id - 1,
            priority=lane.priority.label,
            updated_at=self._now_ms(),
        )

    async def next_ranges(self, group: str, lane: Lane) -> tuple[list[ResendRange], int]:
        """What the group has not been sent yet, and the last row looked at."""
        resend_lane = self._lane(lane)
        at = await self.offset(group, lane)
        if at is None:
            return [], 0
        found = await self._database.fetch(
            f'SELECT id, group_id, "start", "end", attempt FROM "{resend_lane.table}"'
            f" WHERE id > :at ORDER BY id LIMIT {_ROWS_A_READ}",
            at=at,
        )
        ranges = [
            ResendRange(number, start, end, attempt)
            for number, whose, start, end, attempt in found
            if whose is None or whose == group
        ]
        return ranges, found[-1][0] if found else at

    async def offset(self, group: str, lane: Lane) -> int | None:
        """The last row the group is done with; None: it was never opened."""
        found = await self._database.fetch(
            f'SELECT "offset" FROM "{table_name("resend_offset", lane.topic, lane.part)}"'
            " WHERE group_id = :group_id AND priority = :priority",
            group_id=group,
            priority=lane.priority.label,
        )
        return found[0][0] if found else None

    async def mark_done(self, session: SqlSession, group: str, lane: Lane, row: int) -> bool:
        """The group is done with a row and those before it; whether it was not already."""
        return (
            await session.execute(
                f'UPDATE "{table_name("resend_offset", lane.topic, lane.part)}" SET "offset" = :row, updated_at = :now'
                ' WHERE group_id = :group_id AND priority = :priority AND "offset" < :row',
                row=row,
                now=self._now_ms(),
                group_id=group,
                priority=lane.priority.label,
            )
            > 0
        )

    async def lane_ends(self) -> dict[int, int]:
        """How far each resend lane reaches."""
        found = await self._database.fetch("SELECT lane, next_id FROM hermes_lane WHERE kind = 'r'")
        return dict(found)

    async def groups(self, lane: Lane) -> list[str]:
        """Groups that were opened on a lane."""
        found = await self._database.fetch(
            f'SELECT group_id FROM "{table_name("resend_offset", lane.topic, lane.part)}" WHERE priority = :priority',
            priority=lane.priority.label,
        )
        return [group for (group,) in found]

    def _lane(self, lane: Lane) -> Lane:
        _, queue = self._catalog.lanes_by_number[lane.number]
        found = self._catalog.resend_lanes.get((queue.topic, read_queue_id(lane.part, lane.priority)))
        if found is None:
            raise Refused(f"messages of {queue.topic!r} cannot be sent again: it is one of the platform's own topics")
        return found
