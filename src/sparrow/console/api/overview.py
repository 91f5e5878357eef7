"""Routes of the overview and of event streams: rates, lag, alerts, and new messages of a topic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import StreamingResponse

from sparrow.console.api.messages import BodyBytesQuery
from sparrow.console.api.parameters.plans import TopicPath
from sparrow.console.context import ClusterClient, ClusterDependency, ContextDependency
from sparrow.console.event_stream import EVENT_STREAM_RESPONSE, StreamEvent, stream_events
from sparrow.console.masks import check_search
from sparrow.console.models.messages import MessageAnswer, show_message
from sparrow.console.models.overview import OverviewAnswer, describe_overview
from sparrow.console.pagination import decode_cursor, encode_cursor
from sparrow.model.errors import BadRequest
from sparrow.operations.messages import SearchFilter
from sparrow.operations.tail import TailFilter, TailStart, follow_topic

router = APIRouter(tags=["overview"])

TAIL_BODY_BYTES = 4 * 1024
LastEventHeader = Annotated[
    str | None, Header(alias="Last-Event-ID", max_length=16_384, description="Resume after this event.")
]


@router.get("/overview", response_model=OverviewAnswer)
async def get_overview(cluster: ClusterDependency) -> dict[str, Any]:
    """Return rates, lag, brokers and alerts of the last sample, and the last hour of rates and lag."""
    return describe_overview(await cluster.sampler.latest(), cluster.sampler)


@router.get("/overview/events", response_class=StreamingResponse, responses=EVENT_STREAM_RESPONSE)
async def stream_overview(
    request: Request, context: ContextDependency, cluster: ClusterDependency, last_event: LastEventHeader = None
) -> StreamingResponse:
    """Stream the overview: an event `overview` for each sample, without histories."""
    number = int(last_event) if last_event is not None and last_event.isdecimal() and len(last_event) < 16 else -1
    return await stream_events(request, context, _overview_events(cluster, number))


@router.get("/topics/{topic}/events", response_class=StreamingResponse, responses=EVENT_STREAM_RESPONSE)
async def stream_messages(
    topic: TopicPath,
    request: Request,
    context: ContextDependency,
    cluster: ClusterDependency,
    tag: Annotated[str | None, Query(max_length=255)] = None,
    key: Annotated[str | None, Query(max_length=255)] = None,
    text: Annotated[str | None, Query(max_length=1_024)] = None,
    newest: Annotated[int, Query(ge=0, le=100, description="Begin this many messages before each queue's end.")] = 0,
    body_bytes: BodyBytesQuery = TAIL_BODY_BYTES,
    last_event: LastEventHeader = None,
) -> StreamingResponse:
    """Stream new messages of a topic: an event `message` for each. Its id resumes after it."""
    check_search(topic, text=text, key=key, tag=tag)
    await cluster.admin.route(topic)  # 404 before the stream begins
    events = _message_events(
        cluster,
        topic,
        SearchFilter(tag=tag, key=key, text=text),
        newest=newest,
        body_bytes=body_bytes,
        after=_position(last_event),
    )
    return await stream_events(request, context, events)


def _position(last_event: str | None) -> dict[str, int] | None:
    try:
        return decode_cursor(last_event or None, dict[str, int])
    except BadRequest:  # of another stream: begin at the end
        return None


async def _overview_events(cluster: ClusterClient, number: int) -> AsyncIterator[StreamEvent]:
    sampler, error = cluster.sampler, None
    await sampler.latest()
    while True:
        sample = sampler.snapshot
        if sample is not None and sample.number > number:
            number = sample.number
            answer = OverviewAnswer.model_validate(describe_overview(sample, None))
            yield "overview", str(number), answer.model_dump(mode="json")
        if sampler.error != error:
            error = sampler.error
            if error is not None:
                yield "unreachable", "", {"detail": error}
        await sampler.wait_change(number, error)


async def _message_events(
    cluster: ClusterClient,
    topic: str,
    wanted: SearchFilter,
    *,
    newest: int,
    body_bytes: int,
    after: dict[str, int] | None,
) -> AsyncIterator[StreamEvent]:
    start = TailStart(newest=newest, positions=after or {})
    chosen = TailFilter(content=wanted, broker=wanted.broker, queue_id=wanted.queue_id)
    async for message, position in follow_topic(cluster.admin, topic, start, chosen):
        answer = MessageAnswer.model_validate(show_message(message, body_bytes))
        yield "message", encode_cursor(position), answer.model_dump(mode="json")
