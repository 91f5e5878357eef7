"""Sees what other processes have appended, created and deleted.

Readers that wait for a lane are looked after every 20 ms, less often while nothing happens; the others once a second.
What the database shows is passed on only when a crash of its server could not take it back: where a commit may be seen
before it is on disk, a commit of our own comes first, for the server's log is written in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any
from uuid import uuid4

from sparrow import clock
from sparrow.model.errors import SparrowError
from sparrow.model.queue import Queue, QueueOffset
from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.drivers.errors import LockConflict
from sparrow.store.sql.read.lane_view import LaneView
from sparrow.store.sql.state.catalog import upsert_text

log = logging.getLogger(__name__)

POLL_S, IDLE_POLL_S, FULL_POLL_S = 0.02, 0.04, 1.0
_QUIET_LOOKS = 50
"""Looks that found nothing before they become rarer."""
_AHEAD_ROWS = 1000
"""New rows that are fetched for readers who wait."""
_LATER_VALUE = "value = CASE WHEN hermes_mark.value < :value THEN :value ELSE hermes_mark.value + 1 END"
"""Always another value: an UPDATE that changes nothing writes nothing to the server's log."""


class LanePoller:
    """Looks, and tells."""

    def __init__(
        self,
        database: StoreDatabase,
        views: Mapping[int, LaneView],
        *,
        awaited_queues: Callable[[], Collection[Queue]],
        on_growth: Callable[[Queue, QueueOffset], None],
        on_refresh: Callable[[], Awaitable[None]],
        on_restart: Callable[[], Awaitable[None]],
    ) -> None:
        self._database, self._views = database, views
        self._waited_for, self._on_growth = awaited_queues, on_growth
        self._on_refresh, self._on_restart = on_refresh, on_restart
        self._mark = f"seen:{uuid4().hex[:16]}"
        self._identity = ""
        self._work: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._identity = await self._database.server_identity()
        self._work = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        if self._work is not None:
            self._work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._work
        if self._database.shows_before_durable:
            with contextlib.suppress(SparrowError, LockConflict):
                await self._database.execute("DELETE FROM hermes_mark WHERE name = :name", name=self._mark)

    async def poll(self, views: Collection[LaneView]) -> bool:
        """Ask how far these lanes reach, whoever wants to know; whoever waits is told. Whether there was anything."""
        if not views:
            return False
        by_number = {view.lane.number: view for view in views}
        ask = f"SELECT lane, next_id, first_id FROM hermes_lane WHERE lane IN ({','.join(map(str, by_number))})"
        found = await self._database.fetch(ask)
        if self._database.shows_before_durable and any(next_id > by_number[lane].next_id for lane, next_id, _ in found):
            found = await self._made_durable(ask)
        grown = []
        for lane, next_id, first_id in found:
            view = by_number[lane]
            start = view.bounds.end
            if view.advance(next_id, first_id):
                grown.append((view, start))
        if grown:
            await self._tell(grown)
        return bool(grown)

    async def _made_durable(self, ask: str) -> list[Any]:
        """Ask, and commit something of our own behind it: what was seen is then as safe as that. On one connection:
        a server that was started anew in between is noticed."""
        async with self._database.transaction() as session:
            found = await session.fetch(ask)
            # Several may be here at a time: readers that ask, and the watch itself.
            await session.execute(
                upsert_text(self._database.dialect, "hermes_mark", ("name", "value"), key="name", change=_LATER_VALUE),
                name=self._mark,
                value=clock.now_ms(),
            )
        return found

    async def _tell(self, grown: Collection[tuple[LaneView, int]]) -> None:
        """Wake those who wait for what has come behind these offsets."""
        awaited_queues = self._waited_for()
        for view, start in grown:
            end = view.bounds.end
            if view.queue in awaited_queues and view.tail.end < end and end - start <= _AHEAD_ROWS:
                with contextlib.suppress(
                    SparrowError, LockConflict
                ):  # they are told all the same, and ask for themselves
                    view.cache_rows(await view.rows(self._database, start, _AHEAD_ROWS))
            self._on_growth(view.queue, view.bounds.end)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        looked_at_all, quiet, is_lost = 0.0, 0, False
        while True:
            await asyncio.sleep(POLL_S if quiet < _QUIET_LOOKS else IDLE_POLL_S)
            try:
                if loop.time() - looked_at_all > FULL_POLL_S:
                    looked_at_all = loop.time()
                    await self._check_server()
                    await self._on_refresh()
                    await self.poll(list(self._views.values()))
                awaited_queues = self._waited_for()
                has_news = await self.poll([view for view in self._views.values() if view.queue in awaited_queues])
                quiet = 0 if has_news else quiet + 1
                is_lost = False
            except (SparrowError, LockConflict) as cause:
                if not is_lost:
                    log.warning("the database does not answer", extra={"cause": str(cause)})
                is_lost = True
                quiet = _QUIET_LOOKS
            except Exception as mistake:  # ours: whoever waits must not wait for ever
                log.error("the database could not be looked at", exc_info=mistake)
                quiet = _QUIET_LOOKS

    async def _check_server(self) -> None:
        identity = await self._database.server_identity()
        if identity != self._identity:
            log.warning("the database server was started anew: everything is read again")
            self._identity = identity
            await self._on_restart()
