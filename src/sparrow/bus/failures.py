"""Failed attempts, for relay, receiver and handlers alike: error texts, log lines, and the argument of `on_failed`."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta

from sparrow.bus.codec.content_column import decode_content
from sparrow.bus.retry import NextAttempt
from sparrow.bus.sql.claims import ClaimedEvent
from sparrow.bus.sql.completion import ERROR_CHARS_MAX
from sparrow.bus.telemetry.probe import FailedEvent

WORKER_LOST_ERROR = "worker lost: {crashes} workers died or hung while they had this message"


def error_text(error: BaseException) -> str:
    """Return the type and message of an error, in CAP's format."""
    try:
        message = str(error)
    except Exception:
        message = "(the error has no message)"
    # Some databases refuse NUL and lone surrogates; an attempt whose error cannot be stored would never end.
    text = f"{type(error).__name__}-->{message}"[:ERROR_CHARS_MAX].replace("\0", "\\0")
    return text.encode(errors="backslashreplace").decode()


def failed_event(work: ClaimedEvent, group: str | None, error: BaseException) -> FailedEvent:
    """Return the argument of `on_failed` for a message."""
    try:
        headers = decode_content(work.content)[0]
    except Exception:
        headers = {}
    return FailedEvent(
        "published" if group is None else "received",
        work.claim.message_id,
        work.name,
        group,
        headers,
        work.content,
        error_text(error),
        work.retries + 1,
        work.rounds,
    )


def next_try(attempt: NextAttempt | None, work: ClaimedEvent, now: datetime, *, is_parked: bool) -> str:
    """Return what follows a failed attempt, for the log; `attempt` is None if the message is Failed."""
    if attempt is not None:
        due = (work.added if attempt.base == "added" else now) + timedelta(seconds=attempt.seconds)
        return f"the next attempt is due at {max(due, now):%Y-%m-%d %H:%M:%S} UTC"
    if is_parked:
        return "it is Failed and parked: correct the cause, then an operator starts it again"
    return "it is Failed: a retry round or an operator starts it again"


async def wait_for_claim(claiming: asyncio.Lock, timeout_s: float) -> None:
    """Wait until the current claim has returned: its events are then sent or released."""
    try:
        async with asyncio.timeout(timeout_s), claiming:
            pass
    except TimeoutError:
        pass
