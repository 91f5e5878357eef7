"""Polling the database for what other processes have appended, created and deleted.

Lanes that a long-polling reader waits for are polled every 20 ms, less often while nothing happens; the others once a
second. A commit is shown to readers only when a crash of the server could not undo it: where the server shows commits
before they are on disk, this process first commits something itself, because the server writes its log in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any
from uuid import uuid4

from sparrow import clock
from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import Busy, SparrowError
from sparrow.model.queue import Queue, QueueOffset
from sparrow.store.sql.drivers.database import StoreDatabase
from sparrow.store.sql.drivers.errors import LockConflict
from sparrow.store.sql.read.lane_view import LaneView
from sparrow.store.sql.statements import lanes as lane_statements
from sparrow.store.sql.statements import upsert
from sparrow.store.sql.statements.state import marks as mark_statements

log = logging.getLogger(__name__)

POLL_S, IDLE_POLL_S, FULL_POLL_S = 0.02, 0.04, 1.0
_QUIET_POLLS_MAX = 50
"""After this many polls without a new message the interval grows."""
_PREFETCH_ROWS = 1000
"""New rows that are fetched at once for waiting readers."""


class LanePoller:
    """Polls lanes in the background and reports growth."""

    def __init__(
        self,
        database: StoreDatabase,
        views: Mapping[int, LaneView],
        *,
        is_awaited: Callable[[Queue], bool],
        on_growth: Callable[[Queue, QueueOffset], None],
        on_refresh: Callable[[], Awaitable[None]],
        on_restart: Callable[[], Awaitable[None]],
    ) -> None:
        self._database, self._views = database, views
        self._is_awaited, self._on_growth = is_awaited, on_growth
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
                await self._database.execute(mark_statements.DELETE, name=self._mark)

    async def poll(self, views: Collection[LaneView]) -> bool:
        """Read the bounds of lanes and report those that have grown; return whether any has.

        Raise `Busy` if locks were not granted in time: a cluster that has lost a node holds commits up for seconds.
        """
        if not views:
            return False
        by_number = {view.lane.number: view for view in views}
        select = lane_statements.select_bounds_of(by_number)
        try:
            found = await self._database.fetch(select)
            is_grown = any(next_id > by_number[lane].next_id for lane, next_id, _ in found)
            if self._database.shows_before_durable and is_grown:
                found = await self._fetch_durable(select)
        except LockConflict as cause:
            raise Busy(f"the database did not answer in time ({cause})") from cause
        grown = []
        for lane, next_id, first_id in found:
            view = by_number[lane]
            start = view.bounds.end
            if view.advance(next_id, first_id):
                grown.append((view, start))
        if grown:
            await self._report(grown)
        return bool(grown)

    async def _fetch_durable(self, select: str) -> list[Any]:
        """Query, then commit a change on the same connection: what the query saw is then as durable as the change."""
        mark = upsert.upsert(
            self._database.dialect, "hermes_mark", ("name", "value"), key="name", update=mark_statements.RAISE_VALUE
        )
        async with self._database.transaction() as session:
            found = await session.fetch(select)
            # Several polls may run at a time: an upsert, because they change the same row.
            await session.execute(
                mark,
                name=self._mark,
                value=clock.now_ms(),
            )
        return found

    async def _report(self, grown: Collection[tuple[LaneView, int]]) -> None:
        """Cache the new messages after these offsets for waiting readers, and call `on_growth`."""
        for view, start in grown:
            end = view.bounds.end
            if self._is_awaited(view.queue) and view.tail.end < end and end - start <= _PREFETCH_ROWS:
                with contextlib.suppress(SparrowError, LockConflict):  # readers are woken anyway, and query themselves
                    view.cache_rows(await view.rows(self._database, start, _PREFETCH_ROWS))
            self._on_growth(view.queue, view.bounds.end)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        polled_all_at, quiet_polls, failures = 0.0, 0, LogIntervals()
        while True:
            await asyncio.sleep(POLL_S if quiet_polls < _QUIET_POLLS_MAX else IDLE_POLL_S)
            try:
                if loop.time() - polled_all_at > FULL_POLL_S:
                    polled_all_at = loop.time()
                    await self._check_server()
                    await self._on_refresh()
                    await self.poll(list(self._views.values()))
                has_news = await self.poll([view for view in self._views.values() if self._is_awaited(view.queue)])
                quiet_polls = 0 if has_news else quiet_polls + 1
                if failures.end("poll"):
                    log.info("the database is polled again")
            except (SparrowError, LockConflict) as cause:
                if failures.is_due("poll", type(cause)):
                    log.warning("the database cannot be polled: %(error)s; retrying", {"error": cause})
                quiet_polls = _QUIET_POLLS_MAX
            except Exception as bug:  # polling must continue, or waiting readers would never be woken
                if failures.is_due("poll", type(bug)):
                    log.error("the database cannot be polled because of a bug; retrying", exc_info=bug)
                quiet_polls = _QUIET_POLLS_MAX

    async def _check_server(self) -> None:
        identity = await self._database.server_identity()
        if identity != self._identity:
            log.warning("the database server was restarted; reading everything again")
            self._identity = identity
            await self._on_restart()
