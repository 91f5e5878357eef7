"""One pull request: its header, and the broker's response as a typed result."""

from __future__ import annotations

from enum import Enum

import msgspec

from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.consume.subscription import Subscription
from sparrow.model.errors import ProtocolError, Unavailable
from sparrow.model.protocol import PULL_MESSAGES_DEFAULT
from sparrow.model.queue import QueueRef
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.headers import PullMessage, PullMessageResponse
from sparrow.wire.headers.pull import COMMIT_OFFSET_FLAG, SUBSCRIPTION_FLAG, SUSPEND_FLAG

PULL_TIMEOUT_MARGIN_MS = 15_000
"""How much longer than the long poll a pull may take before it counts as lost."""


class PullStatus(Enum):
    """What a pull found (RocketMQ's `PullStatus`)."""

    FOUND = ResponseCode.SUCCESS
    NO_NEW_MESSAGE = ResponseCode.PULL_NOT_FOUND
    NO_MATCHED_MESSAGE = ResponseCode.PULL_RETRY_IMMEDIATELY
    OFFSET_MOVED = ResponseCode.PULL_OFFSET_MOVED


_STATUSES = {int(status.value): status for status in PullStatus}


class PullResult(msgspec.Struct, frozen=True):
    """The response to a pull."""

    status: PullStatus
    records: bytes | memoryview
    """Records as they are stored in the commit log, one after the other."""
    next_offset: int
    first: int
    end: int
    suggested_broker_id: int
    sizes: memoryview | None = None
    """The size of each record, 4 bytes big-endian; None if not requested, or if the broker does not support it."""


async def pull(
    session: ClientSession,
    queue: QueueRef,
    offset: int,
    *,
    group: str,
    subscription: Subscription,
    count_max: int,
    bytes_max: int | None = None,
    long_poll_ms: int = 0,
    commit_offset: int | None = None,
    includes_subscription: bool = False,
    broker_id: int = 0,
    with_sizes: bool = False,
) -> PullResult:
    """Pull records of a queue from an offset on.

    `long_poll_ms`: how long the broker may wait for a message. `includes_subscription`: send the filter with the
    request, for brokers that have not received it in a heartbeat. `with_sizes`: request the size of each record, so
    that a columnar reader need not scan for them.
    """
    route = session.cached_route(queue.topic) or await session.route(queue.topic)
    address = route.address_of(queue.broker_name, broker_id)
    if address is None:
        raise Unavailable(f"the route of topic {queue.topic!r} has no broker {queue.broker_name!r}")
    flags = SUSPEND_FLAG if long_poll_ms else 0
    if commit_offset is not None:
        flags |= COMMIT_OFFSET_FLAG
    if includes_subscription:
        flags |= SUBSCRIPTION_FLAG
    header = PullMessage(
        group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        offset=offset,
        messages_max=count_max,
        sys_flag=flags,
        commit_offset=commit_offset or 0,
        long_poll_ms=long_poll_ms,
        sub_version=subscription.version_ms,
        subscription=subscription.expression if includes_subscription else None,
        expression_type=subscription.expression_type,
        bytes_max=bytes_max,
        broker_name=queue.broker_name,
        with_sizes=True if with_sizes else None,
        accepts_many=True if count_max > PULL_MESSAGES_DEFAULT else None,
    )
    answer = await session.invoke_unchecked(
        address, RequestCode.PULL_MESSAGE, header, timeout_ms=long_poll_ms + PULL_TIMEOUT_MARGIN_MS
    )
    status = _STATUSES.get(answer.code)
    if status is None:
        raise error_for_response(answer.code, answer.remark)
    found = headers.read(PullMessageResponse, answer.ext)
    records, sizes = _parted(answer.body, found.sizes)
    return PullResult(
        status, records, found.next_offset, found.min_offset, found.max_offset, found.suggested_broker_id, sizes
    )


def _parted(body: bytes | memoryview, count: int | None) -> tuple[bytes | memoryview, memoryview | None]:
    """Split a body into records and the sizes that follow them."""
    if count is None:
        return body, None
    view = memoryview(body)
    at = len(view) - 4 * count
    if count < 0 or at < 0:
        raise ProtocolError(f"a pull response of {len(view)} bytes cannot end with {count} record sizes")
    return view[:at], view[at:]
