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
from uuid import uuid4

from sparrow.model.errors import SparrowError
from sparrow.model.queue import Queue, QueueOffset
from sparrow.store.sql.catalogue import insert_new
from sparrow.store.sql.database import Conflict, Database
from sparrow.store.sql.reading import LaneView

log = logging.getLogger(__name__)

QUICK_S, SLOW_S, ALL_S = 0.02, 0.2, 1.0
_QUIET_LOOKS = 50
"""Looks that found nothing before they become rarer."""
_AHEAD_ROWS = 1000
"""New rows that are fetched for readers who wait."""


class Watch:
    """Looks, and tells."""

    def __init__(
        self,
        database: Database,
        views: Mapping[int, LaneView],
        *,
        waited_for: Callable[[], Collection[Queue]],
        on_growth: Callable[[Queue, QueueOffset], None],
        on_refresh: Callable[[], Awaitable[None]],
        on_restart: Callable[[], Awaitable[None]],
    ) -> None:
        self._database, self._views = database, views
        self._waited_for, self._on_growth = waited_for, on_growth
        self._on_refresh, self._on_restart = on_refresh, on_restart
        self._mark = f"seen:{uuid4().hex[:16]}"
        self._identity = ""
        self._work: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._identity = await self._database.identity()
        if self._database.shows_before_durable:
            await insert_new(self._database, "hermes_mark", name=self._mark, value=0)
        self._work = asyncio.get_running_loop().create_task(self._watch())

    async def stop(self) -> None:
        if self._work is not None:
            self._work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._work
        if self._database.shows_before_durable:
            with contextlib.suppress(SparrowError, Conflict):
                await self._database.change("DELETE FROM hermes_mark WHERE name = :name", name=self._mark)

    async def look(self, views: Collection[LaneView]) -> None:
        """Ask how far these lanes reach."""
        if not views:
            return
        by_number = {view.lane.number: view for view in views}
        found = await self._database.rows(
            f"SELECT lane, next_id, first_id FROM hermes_lane WHERE lane IN ({','.join(map(str, by_number))})"
        )
        news = [(by_number[lane], next_id, first_id) for lane, next_id, first_id in found]
        if self._database.shows_before_durable and any(next_id > view.next_id for view, next_id, _ in news):
            await self._database.change("UPDATE hermes_mark SET value = value + 1 WHERE name = :name", name=self._mark)
        for view, next_id, first_id in news:
            view.reach(next_id, first_id)

    async def _watch(self) -> None:
        loop = asyncio.get_running_loop()
        looked_at_all, quiet, is_lost = 0.0, 0, False
        while True:
            await asyncio.sleep(QUICK_S if quiet < _QUIET_LOOKS else SLOW_S)
            try:
                if loop.time() - looked_at_all > ALL_S:
                    looked_at_all = loop.time()
                    await self._check_server()
                    await self._on_refresh()
                    await self.look(list(self._views.values()))
                quiet = 0 if await self._tell() else quiet + 1
                is_lost = False
            except (SparrowError, Conflict) as cause:
                if not is_lost:
                    log.warning("the database does not answer", extra={"cause": str(cause)})
                is_lost = True
                quiet = _QUIET_LOOKS

    async def _check_server(self) -> None:
        identity = await self._database.identity()
        if identity != self._identity:
            log.warning("the database server was started anew: everything is read again")
            self._identity = identity
            await self._on_restart()

    async def _tell(self) -> bool:
        """Wake those who wait for what has come; whether there was anything."""
        waited_for = self._waited_for()
        if not waited_for:
            return False
        views = [view for view in self._views.values() if view.queue in waited_for]
        before = {view.lane.number: view.next_id for view in views}
        await self.look(views)
        grown = [view for view in views if view.next_id > before[view.lane.number]]
        for view in grown:
            start = before[view.lane.number] - 1
            if view.tail.end < view.bounds.end and view.bounds.end - start <= _AHEAD_ROWS:
                view.hold(await view.rows(self._database, start, _AHEAD_ROWS))
            self._on_growth(view.queue, view.bounds.end)
        return bool(grown)
