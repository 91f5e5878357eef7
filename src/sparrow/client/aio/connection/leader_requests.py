"""Requests that only the leader of a broker name serves: commits, locks, acknowledgements, ends of transactions.

After a fail-over the known route still names the former leader. So after a lost connection, or the answer that a broker
does not serve (14), the route is fetched again; if it names another address now, the request is repeated there, once.
"""

from __future__ import annotations

from collections.abc import Container

from sparrow.client.aio.connection.response_errors import error_of
from sparrow.client.aio.connection.session import ClientSession
from sparrow.model.errors import ConnectionLost, NoMaster, RequestTimeout, SparrowError, Unavailable
from sparrow.wire.codes import ResponseCode
from sparrow.wire.error_codes import RemoteUnavailable
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import Header


def leader_address(session: ClientSession, topic: str, broker_name: str) -> str:
    """Return the address of a broker: of its leader, or of the replica with the lowest id if none is known."""
    route = session.cached_route(topic, for_sends=True)
    address = route.address_of(broker_name) if route is not None else None
    if address is None:
        raise NoMaster(f"the route of topic {topic!r} has no broker {broker_name!r} now: try again, or start it")
    return address


async def invoke_leader(
    session: ClientSession,
    topic: str,
    broker_name: str,
    code: int,
    header: Header,
    body: bytes = b"",
    *,
    accepted: Container[int] = (ResponseCode.SUCCESS,),
) -> RemotingCommand:
    """Send a request to the leader of a broker, and return the response if its code is accepted; else raise its error.

    The request may be served twice: the response to the first attempt may have been lost.
    """

    async def attempt(address: str) -> RemotingCommand:
        answer = await session.invoke_unchecked(address, code, header, body)
        if answer.code not in accepted:
            raise error_of(answer, code, address)
        return answer

    address: str | None = None
    try:
        address = leader_address(session, topic, broker_name)
        return await attempt(address)
    except Unavailable as error:
        if not is_leader_change(error):
            raise
        await session.refresh([topic])
        if leader_address(session, topic, broker_name) == address:
            raise
    return await attempt(leader_address(session, topic, broker_name))


def is_leader_change(error: SparrowError) -> bool:
    """Return whether another broker may lead now: this one is gone, is silent, or says that it does not serve."""
    if isinstance(error, RemoteUnavailable):
        return error.code == ResponseCode.SERVICE_NOT_AVAILABLE
    return isinstance(error, ConnectionLost | RequestTimeout | NoMaster)
