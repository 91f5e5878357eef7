"""Looking after stored messages: `bus.operations` for asyncio, `bus.blocking_operations` for everybody else.

```python
failed = await bus.operations.find("received", Where(status=Status.FAILED, name="order.created"))
await bus.operations.reexecute(failed[0].id)
await bus.operations.reexecute(where=Where(error="TimeoutError"), dry_run=True)    # how many would it be?
await bus.operations.reexecute(where=Where(error="TimeoutError"), rate=100)        # a hundred a second
```

The bus need not be running: the tables are enough.
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
    """How many messages are chosen and changed at once, in place of naming their numbers."""

    where: Where | None
    """Which ones."""
    dry_run: bool
    """Only say how many there are, and some of them."""
    limit: int | None
    rate: float | None
    """At most so many a second."""


class _Steps:
    """What both kinds have in common: which steps there are."""

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

    async def find(
        self, side: Side, where: Where = NO_FILTER, *, limit: int = PAGE_SIZE_DEFAULT, before_id: int | None = None
    ) -> list[StoredEvent]:
        """A page of messages, the newest first. The next one: `before_id` is the last one's id."""
        return await self._run(find_steps(self._context, side, where, limit, before_id))

    async def get(self, side: Side, id: int) -> StoredEvent:
        """`UnknownMessage` when it is not there."""
        return await self._run(get_steps(self._context, side, id))

    async def timeline(self, correlation_id: str) -> list[StoredEvent]:
        """Everything of one conversation that is stored here, both sides, in the order of time. It reads whole tables:
        no index has the headers."""
        return await self._run(self._timeline(correlation_id))

    async def stats(self) -> BusStats:
        """Counts by state, backlog by group, age of the oldest. May be asked often: see `sql/counting.py`."""
        return await self._run(self._stats())

    async def backlog(self, *, by_name: bool = False) -> list[GroupBacklog]:
        """Open work by group, or by topic and group."""
        return await self._run(self._backlog(by_name))

    async def failures(self) -> list[FailureSummary]:
        """What has failed, by kind of error."""
        return await self._run(self._failures())

    # -- doing --------------------------------------------------------------------------------------------------------

    async def requeue(self, *ids: int, **how: Unpack[BulkOptions]) -> OperationResult:
        """Have published messages sent once more: Failed ones, unless `where` or a number says another closed one."""
        return await self._run(self._act(REQUEUE, "published", ids, how))

    async def reexecute(self, *ids: int, **how: Unpack[BulkOptions]) -> OperationResult:
        """Have received messages handled once more; one that has succeeded then has its effect again."""
        return await self._run(self._act(REQUEUE, "received", ids, how))

    async def cancel(self, *ids: int, side: Side = "published", **how: Unpack[BulkOptions]) -> OperationResult:
        """Scheduled and Delayed ones that no worker holds are never sent, or never handled. A filter that names no
        state means Delayed."""
        return await self._run(self._act(self._cancelling(), side, ids, how))

    async def publish_now(self, *ids: int, **how: Unpack[BulkOptions]) -> OperationResult:
        """Delayed ones wait no longer."""
        return await self._run(self._act(PUBLISH_NOW, "published", ids, how))

    async def delete(
        self, *ids: int, side: Side = "published", force: bool = False, **how: Unpack[BulkOptions]
    ) -> OperationResult:
        """Closed ones; with `force` also open ones that no worker holds. A filter that names no state means Failed."""
        return await self._run(self._act(delete_action(force=force), side, ids, how))

    async def park(self, *ids: int, side: Side = "received", **how: Unpack[BulkOptions]) -> OperationResult:
        """Failed ones get no further round by themselves."""
        return await self._run(self._act(PARK, side, ids, how))

    async def unpark(self, *ids: int, side: Side = "received", **how: Unpack[BulkOptions]) -> OperationResult:
        """They get rounds again."""
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
    """The same without an event loop; each method does what the one of `AsyncOperations` does."""

    def find(
        self, side: Side, where: Where = NO_FILTER, *, limit: int = PAGE_SIZE_DEFAULT, before_id: int | None = None
    ) -> list[StoredEvent]:
        return self._run(find_steps(self._context, side, where, limit, before_id))

    def get(self, side: Side, id: int) -> StoredEvent:
        return self._run(get_steps(self._context, side, id))

    def timeline(self, correlation_id: str) -> list[StoredEvent]:
        return self._run(self._timeline(correlation_id))

    def stats(self) -> BusStats:
        return self._run(self._stats())

    def backlog(self, *, by_name: bool = False) -> list[GroupBacklog]:
        return self._run(self._backlog(by_name))

    def failures(self) -> list[FailureSummary]:
        return self._run(self._failures())

    def requeue(self, *ids: int, **how: Unpack[BulkOptions]) -> OperationResult:
        return self._run(self._act(REQUEUE, "published", ids, how))

    def reexecute(self, *ids: int, **how: Unpack[BulkOptions]) -> OperationResult:
        return self._run(self._act(REQUEUE, "received", ids, how))

    def cancel(self, *ids: int, side: Side = "published", **how: Unpack[BulkOptions]) -> OperationResult:
        return self._run(self._act(self._cancelling(), side, ids, how))

    def publish_now(self, *ids: int, **how: Unpack[BulkOptions]) -> OperationResult:
        return self._run(self._act(PUBLISH_NOW, "published", ids, how))

    def delete(
        self, *ids: int, side: Side = "published", force: bool = False, **how: Unpack[BulkOptions]
    ) -> OperationResult:
        return self._run(self._act(delete_action(force=force), side, ids, how))

    def park(self, *ids: int, side: Side = "received", **how: Unpack[BulkOptions]) -> OperationResult:
        return self._run(self._act(PARK, side, ids, how))

    def unpark(self, *ids: int, side: Side = "received", **how: Unpack[BulkOptions]) -> OperationResult:
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
