"""Failed attempts, for relay, receiver and handlers alike: error texts, and the argument of `on_failed`."""

from __future__ import annotations

import asyncio

from sparrow.bus.codec.content_column import decode_content
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


async def wait_for_claim(claiming: asyncio.Lock, timeout_s: float) -> None:
    """Wait until the current claim has returned: its events are then sent or released."""
    try:
        async with asyncio.timeout(timeout_s), claiming:
            pass
    except TimeoutError:
        pass
