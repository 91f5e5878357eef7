"""The steps of each operation as generators, run by asyncio and blocking callers alike.

By id an operation is all or nothing: if one message does not allow it, nothing changes. By filter it runs in batches,
each in its own transaction, and skips messages in another state.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace
from sqlalchemy import Connection

from sparrow.bus.context import BusContext
from sparrow.bus.errors import IllegalTransition, UnknownMessage
from sparrow.bus.operations.stored_event import EVENT_ID_MAX, OperationResult, StoredEvent, Where
from sparrow.bus.sql import operator_actions, stored_events
from sparrow.bus.sql.dialect import SqlDialect
from sparrow.bus.states import OPEN_STATUSES, EventStatus
from sparrow.bus.telemetry.probe import Side
from sparrow.model.errors import Refused

T = TypeVar("T")

BATCH_SIZE = 500
SAMPLE_SIZE = 20
PAGE_SIZE_MAX = 1_000
_CLOSED = frozenset(EventStatus) - OPEN_STATUSES


class RatePause(NamedTuple):
    seconds: float


TransactionWork = Callable[[Connection], Any]
OperationSteps = Generator[TransactionWork | RatePause, Any, T]
"""Each step is one transaction; its result is sent back into the generator."""


@dataclass(frozen=True)
class OperatorAction:
    name: str
    wanted: str
    """The target state, for error messages."""
    allowed_statuses: frozenset[EventStatus]
    default_status: EventStatus
    """The state that a filter without one means."""
    becomes: EventStatus | None
    apply: Callable[[Connection, SqlDialect, int, Sequence[int]], list[int]]


REQUEUE = OperatorAction(
    "requeue", "Enqueued", _CLOSED, EventStatus.FAILED, EventStatus.ENQUEUED, operator_actions.requeue
)
PUBLISH_NOW = OperatorAction(
    "publish-now",
    "due now",
    frozenset({EventStatus.DELAYED}),
    EventStatus.DELAYED,
    EventStatus.SCHEDULED,
    operator_actions.publish_now,
)
PARK = OperatorAction(
    "park", "parked", frozenset({EventStatus.FAILED}), EventStatus.FAILED, None, operator_actions.park
)
UNPARK = OperatorAction(
    "unpark",
    "unparked",
    frozenset({EventStatus.FAILED}),
    EventStatus.FAILED,
    None,
    partial(operator_actions.park, parks=False),
)


def cancel_action(retention_s: float) -> OperatorAction:
    apply = partial(operator_actions.cancel, retention_s=retention_s)
    allowed_statuses = frozenset({EventStatus.SCHEDULED, EventStatus.DELAYED})
    return OperatorAction("cancel", "Cancelled", allowed_statuses, EventStatus.DELAYED, EventStatus.CANCELLED, apply)


def delete_action(*, force: bool) -> OperatorAction:
    allowed_statuses = frozenset(EventStatus) if force else _CLOSED
    return OperatorAction(
        "delete", "deleted", allowed_statuses, EventStatus.FAILED, None, partial(operator_actions.delete, force=force)
    )


def action_steps(
    context: BusContext,
    action: OperatorAction,
    side: Side,
    numbers: Sequence[int],
    where: Where | None,
    *,
    dry_run: bool,
    limit: int | None,
    rate: float | None,
) -> OperationSteps[OperationResult]:
    """Return the steps of an action on the messages of `numbers` or of `where`, exactly one of which is given."""
    if bool(numbers) == (where is not None):
        raise Refused(f"{action.name}: pass either ids of messages or `where`")
    if limit is not None and limit < 1:
        raise Refused(f"{action.name}: the limit must be 1 or more, not {limit}")
    if rate is not None and rate <= 0:
        raise Refused(f"{action.name}: the rate must be more than 0 messages a second, not {rate}")
    if where is None:
        return _acting_on(context, action, side, list(dict.fromkeys(numbers)), dry_run=dry_run)
    return _acting_where(context, action, side, _narrowed(action, where), dry_run=dry_run, limit=limit, rate=rate)


def get_steps(context: BusContext, side: Side, number: int) -> OperationSteps[StoredEvent]:
    found = None
    if 0 <= number <= EVENT_ID_MAX:
        found = yield lambda db: stored_events.get(db, context.sql_of(db), side, number)
    if found is None:
        raise UnknownMessage(side, number)
    return found  # type: ignore[no-any-return]


def find_steps(
    context: BusContext, side: Side, where: Where, limit: int, before_id: int | None
) -> OperationSteps[list[StoredEvent]]:
    if not 1 <= limit <= PAGE_SIZE_MAX:
        raise Refused(f"a page has 1 to {PAGE_SIZE_MAX} messages, not {limit}: take the next one with before_id")
    if before_id is not None:
        before_id = min(before_id, EVENT_ID_MAX)
    found = yield lambda db: stored_events.find(db, context.sql_of(db), side, where, limit=limit, before_id=before_id)
    return found  # type: ignore[no-any-return]


def _narrowed(action: OperatorAction, where: Where) -> Where:
    if where.matches_everything:
        raise Refused(f"{action.name}: the filter is empty; pass at least a state")
    if where.status is None:
        return replace(where, status=action.default_status)
    statuses = OPEN_STATUSES if where.status == "Open" else {EventStatus(where.status)}
    if not statuses & action.allowed_statuses:
        legal = ", ".join(sorted(status.value for status in action.allowed_statuses))
        raise Refused(
            f"{action.name}: messages in state {where.status} cannot become {action.wanted}; allowed states: {legal}"
        )
    return where


def _acting_on(
    context: BusContext, action: OperatorAction, side: Side, numbers: list[int], *, dry_run: bool
) -> OperationSteps[OperationResult]:
    for number in numbers:
        if not 0 <= number <= EVENT_ID_MAX:
            raise UnknownMessage(side, number)

    def work(db: Connection) -> None:
        sql = context.sql_of(db)
        for first in range(0, len(numbers), BATCH_SIZE):
            batch = numbers[first : first + BATCH_SIZE]
            done = set(action.apply(db, sql, stored_events.message_type(side), batch))
            for number in batch:
                if number not in done:
                    _refuse(db, sql, action, side, number)
        if dry_run:
            raise _Undo

    try:
        yield work
    except _Undo:
        return OperationResult(len(numbers), tuple(numbers[:SAMPLE_SIZE]), is_dry=True)
    _report(context, action, side, numbers)
    return OperationResult(len(numbers), tuple(numbers[:SAMPLE_SIZE]))


def _refuse(db: Connection, sql: SqlDialect, action: OperatorAction, side: Side, number: int) -> None:
    found = stored_events.get(db, sql, side, number)
    if found is None:
        raise UnknownMessage(side, number)
    raise IllegalTransition(number, found.status.value, action.wanted)


def _acting_where(
    context: BusContext,
    action: OperatorAction,
    side: Side,
    where: Where,
    *,
    dry_run: bool,
    limit: int | None,
    rate: float | None,
) -> OperationSteps[OperationResult]:
    if dry_run:
        count = yield lambda db: stored_events.count(db, context.sql_of(db), side, where, limit)
        sample = yield lambda db: stored_events.matching_ids(
            db, context.sql_of(db), side, where, limit=min(SAMPLE_SIZE, limit or SAMPLE_SIZE)
        )
        return OperationResult(count, tuple(sample), is_dry=True)
    done = after_id = 0
    sample = []
    batch_size = BATCH_SIZE if rate is None else max(1, min(BATCH_SIZE, int(rate)))
    while limit is None or done < limit:
        size = batch_size if limit is None else min(batch_size, limit - done)
        chosen, changed = yield partial(_apply_batch, context, action, side, where, size, after_id)
        if not chosen:
            break
        done, after_id = done + len(changed), chosen[-1]
        sample += changed[: SAMPLE_SIZE - len(sample)]
        _report(context, action, side, changed)
        if rate is not None and changed:
            yield RatePause(len(changed) / rate)
    return OperationResult(done, tuple(sample))


def _apply_batch(
    context: BusContext, action: OperatorAction, side: Side, where: Where, size: int, after_id: int, db: Connection
) -> tuple[list[int], list[int]]:
    """Return the selected ids, and those of them that were changed."""
    sql = context.sql_of(db)
    chosen = stored_events.matching_ids(db, sql, side, where, limit=size, after_id=after_id)
    return chosen, action.apply(db, sql, stored_events.message_type(side), chosen) if chosen else []


def _report(context: BusContext, action: OperatorAction, side: Side, numbers: Sequence[int]) -> None:
    if not numbers:
        return
    context.probe.count("bus_operations_total", len(numbers), action=action.name, side=side)
    if action.becomes is not None:
        for number in numbers:
            context.probe.changed(side, number, action.becomes)
    # Also when a message left the queue: the next one of its key can be claimed.
    (context.wake_relay if side == "published" else context.wake_executors)()


class _Undo(Exception):
    """Rolls back the transaction of a dry run."""
