"""A send to one queue that is not retried, for messages that belong to that queue only."""

from __future__ import annotations

from sparrow import clock
from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.aio.produce.sender import SEND_STATUS_BY_RESPONSE, SendOutcome, SendPayload
from sparrow.model.errors import Unavailable
from sparrow.model.protocol import AUTO_CREATE_TOPIC
from sparrow.model.queue import QueueRef
from sparrow.wire.codes import RequestCode
from sparrow.wire.error_codes import error_for_response
from sparrow.wire.headers import SendMessageV2


async def send_once(
    session: ClientSession,
    queue: QueueRef,
    payload: SendPayload,
    *,
    group: str,
    code: RequestCode = RequestCode.SEND_MESSAGE_V2,
    reconsume_times: int = 0,
    reconsume_times_max: int | None = None,
    timeout_ms: int | None = None,
) -> SendOutcome:
    """Send a message once; it is stored when this returns."""
    route = session.cached_route(queue.topic) or await session.route(queue.topic)
    address = route.masters.get(queue.broker_name)
    if address is None:
        raise Unavailable(f"broker {queue.broker_name!r} of topic {queue.topic!r} has no master now")
    header = SendMessageV2(
        group,
        queue.topic,
        AUTO_CREATE_TOPIC,
        1,
        queue.queue_id,
        payload.sys_flag,
        clock.now_ms(),
        payload.flag,
        payload.properties,
        reconsume_times,
        reconsume_times_max=reconsume_times_max,
        broker_name=queue.broker_name,
    )
    answer = await session.invoke_unchecked(address, code, header, bytes(payload.body), timeout_ms=timeout_ms)
    status = SEND_STATUS_BY_RESPONSE.get(answer.code)
    if status is None:
        raise error_for_response(answer.code, answer.remark)
    return SendOutcome(queue, status, answer)
