"""The check of an SQL92 condition at a broker, before a consumer subscribes with it."""

from __future__ import annotations

from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.consume.subscription import Subscription
from sparrow.model.errors import ConnectionLost, RequestTimeout, UnknownTopic
from sparrow.model.protocol import EXPRESSION_SQL92
from sparrow.wire import bodies
from sparrow.wire.bodies import ClientConfigCheck
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.error_codes import RemoteRefused
from sparrow.wire.headers import EmptyHeader


async def check_filter(session: ClientSession, group: str, subscription: Subscription) -> None:
    """Raise the refusal of a broker. A condition that cannot be checked now is checked when the consumer starts.

    Tags need no check: brokers accept any.
    """
    if subscription.expression_type != EXPRESSION_SQL92:
        return
    await session.open()
    try:
        route = await session.route(subscription.topic)
        for address in list(route.masters.values())[:1]:  # they are alike
            body = bodies.write(ClientConfigCheck(session.client_id, group, subscription.data()))
            await session.invoke(address, RequestCode.CHECK_CLIENT_CONFIG, EmptyHeader(), body)
    except (ConnectionLost, RequestTimeout, UnknownTopic):
        return
    except RemoteRefused as refusal:
        if refusal.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # brokers before RocketMQ 4.3
            return
        raise
