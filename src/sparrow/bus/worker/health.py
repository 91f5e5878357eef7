"""The health of a running bus: its failing tasks by what they miss, failing handlers, and parked messages."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Literal

from sqlalchemy.exc import SQLAlchemyError

from sparrow.bus.context import BusContext
from sparrow.bus.errors import BusDatabaseUnreachable
from sparrow.bus.sql.connections.database import is_unreachable
from sparrow.bus.telemetry.finding_log import KeyedFinding
from sparrow.bus.telemetry.probe import Side
from sparrow.bus.worker.supervision import SupervisedTask
from sparrow.model.errors import SparrowError
from sparrow.model.health import Finding

TaskCause = Literal["broker", "database", "task"]


def task_findings(context: BusContext, tasks: Iterable[SupervisedTask], on_broker: set[str]) -> list[KeyedFinding]:
    """Return one finding per cause and kind of error; `on_broker` names the tasks that use the broker."""
    found: dict[str, list[tuple[TaskCause, SupervisedTask, BaseException]]] = {}
    for task in tasks:
        error = task.problem
        if error is not None:
            cause = cause_of(error, uses_broker=task.name in on_broker)
            what = task.name if cause == "task" else type(error).__name__
            found.setdefault(f"{cause}:{what}", []).append((cause, task, error))
    return [_task_finding(context, key, failing) for key, failing in found.items()]


def cause_of(error: BaseException, *, uses_broker: bool) -> TaskCause:
    """Return what a failing task misses: the broker, the database, or nothing of the kind."""
    if isinstance(error, (SQLAlchemyError, BusDatabaseUnreachable)):
        return "database" if is_unreachable(error) or isinstance(error, BusDatabaseUnreachable) else "task"
    # An error that names a file is not about the network: an archive on a full disk, for example.
    if getattr(error, "filename", None) is not None:
        return "task"
    if uses_broker:
        return "broker" if isinstance(error, (SparrowError, OSError)) else "task"
    return "database" if is_unreachable(error) else "task"


def _task_finding(
    context: BusContext, key: str, failing: list[tuple[TaskCause, SupervisedTask, BaseException]]
) -> KeyedFinding:
    cause, _, error = failing[0]
    names = ", ".join(task.name for _, task, _ in failing)
    why = str(error).partition("\n")[0] or type(error).__name__
    if cause == "broker":
        text = (
            f"the broker {context.broker} cannot be used ({names}): {why}; published events wait in the table until it"
            " can: check that it runs, and the URL of the bus"
        )
    elif cause == "database":
        text = (
            f"the database {context.database} cannot be used ({names}): {why}; check that it runs, and the URL of the"
            " bus"
        )
    else:
        text = f"{names} fails and is started again: {type(error).__name__}: {why}; the traceback is in the log"
    since = min(task.failing_since or datetime.now(UTC) for _, task, _ in failing)
    return KeyedFinding(key, Finding(cause, text, since), error)


def parked_finding(side: Side, count: int, since: datetime) -> KeyedFinding:
    """Return the finding for parked messages."""
    again = "requeue" if side == "published" else "reexecute"
    text = (
        f"parked messages in {side}: {count}; no retry round tries them again: see `sparrow bus failures`, correct the"
        f" cause, then run `sparrow bus {again}` or `sparrow bus delete {side}`"
    )
    return KeyedFinding(f"parked:{side}", Finding("parked", text, since))


def not_started_finding(since: datetime) -> Finding:
    text = "the bus is not started, it neither sends nor handles: call its `start()`, or use it in a `with` block"
    return Finding("not started", text, since)
