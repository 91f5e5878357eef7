"""Operations on stored messages: `bus.operations` blocks, `bus.aio.operations` awaits.

```python
failed = bus.operations.find("received", Where(status=EventStatus.FAILED, name="order.created"))
bus.operations.reexecute(failed[0].id)
bus.operations.reexecute(where=Where(error="TimeoutError"), dry_run=True)    # count only
bus.operations.reexecute(where=Where(error="TimeoutError"), rate=100)        # a hundred a second
```

The bus need not be running; its tables must exist.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, TypedDict, TypeVar, Unpack

from sqlalchemy import Connection

from sparrow.bus.context import BusContext
from sparrow.bus.operations.actions import (
    PARK,
    PUBLISH_NOW,
    REQUEUE,
    UNPARK,
    OperationSteps,
    OperatorAction,
    RatePause,
    TransactionWork,
    action_steps,
    cancel_action,
    delete_action,
    find_steps,
    get_steps,
)
from sparrow.bus.operations.stored_event import (
    SIDES,
    BusStats,
    FailureSummary,
    GroupBacklog,
    OperationResult,
    StoredEvent,
    Where,
)
from sparrow.bus.sql import statistics
from sparrow.bus.telemetry.probe import Side
from sparrow.model.errors import Refused

__all__ = ["AsyncOperations", "Operations"]

T = TypeVar("T")
NO_FILTER = Where()
PAGE_SIZE_DEFAULT = 50
TIMELINE_EVENTS_MAX = 500


class BulkOptions(TypedDict, total=False):
    """Selection of many messages instead of ids."""

    where: Where | None
    """The filter."""
    dry_run: bool
    """Only count, and return some ids."""
    limit: int | None
    rate: float | None
    """Messages per second."""


class _Steps:
    """The steps that both kinds of operations share."""

    def __init__(self, context: BusContext) -> None:
        self._context = context

    def _act(
        self, action: OperatorAction, side: Side, ids: tuple[int, ...], how: BulkOptions
    ) -> OperationSteps[OperationResult]:
        return action_steps(
            self._context,
            action,
            side,
            ids,
            how.get("where"),
            dry_run=how.get("dry_run", False),
            limit=how.get("limit"),
            rate=how.get("rate"),
        )

    def _cancelling(self) -> OperatorAction:
        return cancel_action(self._context.settings.succeeded_retention_s)

    def _timeline(self, correlation_id: str) -> OperationSteps[list[StoredEvent]]:
        where, found = Where(correlation_id=correlation_id), []
        for side in SIDES:
            found += yield from find_steps(self._context, side, where, TIMELINE_EVENTS_MAX, None)
        return sorted(found, key=lambda event: (event.added, event.id))

    def _stats(self) -> OperationSteps[BusStats]:
        def work(db: Connection) -> BusStats:
            sql = self._context.sql_of(db)
            return BusStats(statistics.table_stats(db, sql, "published"), statistics.table_stats(db, sql, "received"))

        return (yield work)  # type: ignore[no-any-return]

    def _backlog(self, by_name: bool) -> OperationSteps[list[GroupBacklog]]:
        def work(db: Connection) -> list[GroupBacklog]:
            sql = self._context.sql_of(db)
            return [each for side in SIDES for each in statistics.backlog(db, sql, side, by_name=by_name)]

        return (yield work)  # type: ignore[no-any-return]

    def _failures(self) -> OperationSteps[list[FailureSummary]]:
        def work(db: Connection) -> list[FailureSummary]:
            sql = self._context.sql_of(db)
            return [each for side in SIDES for each in statistics.failures(db, sql, side)]

        return (yield work)  # type: ignore[no-any-return]


class AsyncOperations(_Steps):
    # -- looking ------------------------------------------------------------------------------------------------------
    """Operations to await; `bus.aio.operations`."""

    async def find(
        self, side: Side, where: Where = NO_FILTER, *, limit: int = PAGE_SIZE_DEFAULT, before_id: int | None = None
    ) -> list[StoredEvent]:
        """Return a page of messages, the newest first; for the next page pass the last id as `before_id`."""
        return await self._run(find_steps(self._context, side, where, limit, before_id))

    async def get(self, side: Side, id: int) -> StoredEvent:
        """Return one message; raise `UnknownMessage` if it does not exist."""
        return await self._run(get_steps(self._context, side, id))

    async def timeline(self, correlation_id: str) -> list[StoredEvent]:
        """Return all stored messages of one conversation, both sides, in the order of time.

        It reads whole tables: headers have no index.
        """
        return await self._run(self._timeline(correlation_id))

    async def stats(self) -> BusStats:
        """Return counts by state, backlog by group, and the age of the oldest open message.

        It is cheap enough to be polled every second.
        """
        return await self._run(self._stats())

    async def backlog(self, *, by_name: bool = False) -> list[GroupBacklog]:
        """Return the open messages by group, or by topic and group."""
        return await self._run(self._backlog(by_name))

    async def failures(self) -> list[FailureSummary]:
        """Return failed messages grouped by kind of error."""
        return await self._run(self._failures())

    # -- doing --------------------------------------------------------------------------------------------------------

    async def requeue(self, *ids: int, **how: Unpack[BulkOptions]) -> OperationResult:
        """Send published messages once more: by filter Failed ones unless it names a state, by id any closed one."""
        return await self._run(self._act(REQUEUE, "published", ids, how))

    async def reexecute(self, *ids: int, **how: Unpack[BulkOptions]) -> OperationResult:
        """Handle received messages once more; one that has succeeded takes effect again."""
        return await self._run(self._act(REQUEUE, "received", ids, how))

    async def cancel(self, *ids: int, side: Side = "published", **how: Unpack[BulkOptions]) -> OperationResult:
        """Cancel Scheduled and Delayed messages that no worker holds; a filter without a state means Delayed."""
        return await self._run(self._act(self._cancelling(), side, ids, how))

    async def publish_now(self, *ids: int, **how: Unpack[BulkOptions]) -> OperationResult:
        """Send Delayed messages now."""
        return await self._run(self._act(PUBLISH_NOW, "published", ids, how))

    async def delete(
        self, *ids: int, side: Side = "published", force: bool = False, **how: Unpack[BulkOptions]
    ) -> OperationResult:
        """Delete closed messages; with `force` also open ones that no worker holds.

        A filter without a state means Failed.
        """
        return await self._run(self._act(delete_action(force=force), side, ids, how))

    async def park(self, *ids: int, side: Side = "received", **how: Unpack[BulkOptions]) -> OperationResult:
        """Exclude Failed messages from retry rounds."""
        return await self._run(self._act(PARK, side, ids, how))

    async def unpark(self, *ids: int, side: Side = "received", **how: Unpack[BulkOptions]) -> OperationResult:
        """Include Failed messages in retry rounds again."""
        return await self._run(self._act(UNPARK, side, ids, how))

    async def _run(self, steps: OperationSteps[T]) -> T:
        database = self._context.database
        result: Any = None
        try:
            step: TransactionWork | RatePause = next(steps)
            while True:
                if isinstance(step, RatePause):
                    await asyncio.sleep(step.seconds)
                    step = steps.send(None)
                    continue
                try:
                    result = await database.run(step)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]


class Operations(_Steps):
    """Blocking operations; `bus.operations`."""

    def find(
        self, side: Side, where: Where = NO_FILTER, *, limit: int = PAGE_SIZE_DEFAULT, before_id: int | None = None
    ) -> list[StoredEvent]:
        """Return a page of messages, the newest first; for the next page pass the last id as `before_id`."""
        return self._run(find_steps(self._context, side, where, limit, before_id))

    def get(self, side: Side, id: int) -> StoredEvent:
        """Return one message; raise `UnknownMessage` if it does not exist."""
        return self._run(get_steps(self._context, side, id))

    def timeline(self, correlation_id: str) -> list[StoredEvent]:
        """Return all stored messages of one conversation, both sides, in the order of time.

        It reads whole tables: headers have no index.
        """
        return self._run(self._timeline(correlation_id))

    def stats(self) -> BusStats:
        """Return counts by state, backlog by group, and the age of the oldest open message.

        It is cheap enough to be polled every second.
        """
        return self._run(self._stats())

    def backlog(self, *, by_name: bool = False) -> list[GroupBacklog]:
        """Return the open messages by group, or by topic and group."""
        return self._run(self._backlog(by_name))

    def failures(self) -> list[FailureSummary]:
        """Return failed messages grouped by kind of error."""
        return self._run(self._failures())

    def requeue(self, *ids: int, **how: Unpack[BulkOptions]) -> OperationResult:
        """Send published messages once more: by filter Failed ones unless it names a state, by id any closed one."""
        return self._run(self._act(REQUEUE, "published", ids, how))

    def reexecute(self, *ids: int, **how: Unpack[BulkOptions]) -> OperationResult:
        """Handle received messages once more; one that has succeeded takes effect again."""
        return self._run(self._act(REQUEUE, "received", ids, how))

    def cancel(self, *ids: int, side: Side = "published", **how: Unpack[BulkOptions]) -> OperationResult:
        """Cancel Scheduled and Delayed messages that no worker holds; a filter without a state means Delayed."""
        return self._run(self._act(self._cancelling(), side, ids, how))

    def publish_now(self, *ids: int, **how: Unpack[BulkOptions]) -> OperationResult:
        """Send Delayed messages now."""
        return self._run(self._act(PUBLISH_NOW, "published", ids, how))

    def delete(
        self, *ids: int, side: Side = "published", force: bool = False, **how: Unpack[BulkOptions]
    ) -> OperationResult:
        """Delete closed messages; with `force` also open ones that no worker holds.

        A filter without a state means Failed.
        """
        return self._run(self._act(delete_action(force=force), side, ids, how))

    def park(self, *ids: int, side: Side = "received", **how: Unpack[BulkOptions]) -> OperationResult:
        """Exclude Failed messages from retry rounds."""
        return self._run(self._act(PARK, side, ids, how))

    def unpark(self, *ids: int, side: Side = "received", **how: Unpack[BulkOptions]) -> OperationResult:
        """Include Failed messages in retry rounds again."""
        return self._run(self._act(UNPARK, side, ids, how))

    def _run(self, steps: OperationSteps[T]) -> T:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise Refused("this would block the event loop: use `await bus.aio.operations...`")
        database = self._context.database
        try:
            step: TransactionWork | RatePause = next(steps)
            while True:
                if isinstance(step, RatePause):
                    time.sleep(step.seconds)
                    step = steps.send(None)
                    continue
                try:
                    result = database.run_blocking(step)
                except Exception as error:
                    step = steps.throw(error)
                else:
                    step = steps.send(result)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
