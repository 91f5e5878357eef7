"""Server-sent events: one line of JSON for each event, an id to resume with, and a heartbeat."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

from fastapi import Request
from fastapi.responses import StreamingResponse

from sparrow.console.context import ConsoleContext
from sparrow.console.problems import status_of
from sparrow.model.errors import SparrowError

HEARTBEAT_S = 15.0
EVENT_STREAM_TYPE = "text/event-stream"
EVENT_STREAM_RESPONSE: dict[int | str, dict[str, Any]] = {
    200: {"description": "Server-sent events.", "content": {EVENT_STREAM_TYPE: {"schema": {"type": "string"}}}}
}

StreamEvent = tuple[str, str, Any]
"""The name of an event, its id, and its data."""


async def stream_events(
    request: Request, context: ConsoleContext, events: AsyncIterator[StreamEvent]
) -> StreamingResponse:
    """Return a response that sends the events until the client leaves. An error becomes the last event, `error`."""
    context.check_streams()

    async def lines() -> AsyncIterator[str]:
        async with context.stream():
            yield "retry: 2000\n\n"
            async for text in _with_heartbeats(events):
                yield text
                if await request.is_disconnected():
                    return

    return StreamingResponse(
        lines(), media_type=EVENT_STREAM_TYPE, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )


async def _with_heartbeats(events: AsyncIterator[StreamEvent]) -> AsyncIterator[str]:
    source = aiter(events)
    pending: asyncio.Task[StreamEvent] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(source))
            done, _ = await asyncio.wait([pending], timeout=HEARTBEAT_S)
            if not done:
                yield ": heartbeat\n\n"
                continue
            finished, pending = pending, None
            try:
                yield _format(*finished.result())
            except StopAsyncIteration:
                return
            except SparrowError as error:
                problem = {"status": status_of(error), "code": type(error).__name__, "detail": str(error)}
                yield _format("error", "", problem)
                return
    finally:
        if pending is not None:
            pending.cancel()
            await asyncio.gather(pending, return_exceptions=True)
        close = getattr(source, "aclose", None)
        if close is not None:
            await close()


def _format(name: str, event_id: str, data: Any) -> str:
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: {name}\ndata: {json.dumps(data, ensure_ascii=True, separators=(',', ':'))}\n\n"
