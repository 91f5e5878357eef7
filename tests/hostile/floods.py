"""Floods: many requests of each kind that a server serves, with plausible fields."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import msgspec
from tests.hostile.attack_connection import attack_connections
from tests.hostile.tally import Tally
from tests.hostile.target import Target

from sparrow.broker import dispatch as broker_dispatch
from sparrow.nameserver import dispatch as name_server_dispatch
from sparrow.net import Address
from sparrow.wire import headers
from sparrow.wire.codes import RequestCode
from sparrow.wire.frame import RemotingCommand

_INLINE = (
    RequestCode.END_TRANSACTION,
    RequestCode.SEND_MESSAGE,
    RequestCode.SEND_MESSAGE_V2,
    RequestCode.SEND_BATCH_MESSAGE,
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.ACK_MESSAGE,
)
BROKER_CODES = sorted({int(code) for code in (*broker_dispatch.HANDLERS, *_INLINE)})
NAME_SERVER_CODES = sorted({int(code) for code in (*name_server_dispatch.HANDLERS, 105)})
_CONNECTIONS = 4
_VALUES = {"topic": "hostile", "b": "hostile", "defaultTopic": "TBW102", "c": "TBW102", "suspendTimeoutMillis": "0"}
_BODIES = (b"", b"{}", b'{"clientID":"c"}', b"\0" * 64)


def plausible_request(code: int, number: int) -> RemotingCommand:
    """Return a request whose required fields are numbers, which are texts and names, too."""
    fields = msgspec.structs.fields(headers.request_header_type(code))
    ext = {field.encode_name: _VALUES.get(field.encode_name, "1") for field in fields if field.required}
    return RemotingCommand(code, number, ext=ext, body=_BODIES[number % len(_BODIES)])


async def broker_flood(target: Target, tally: Tally, count: int) -> None:
    """Send `count` requests of each kind to the broker."""
    await _flood(target.broker, BROKER_CODES, tally, count)
    await target.hold()


async def name_server_flood(target: Target, tally: Tally, count: int) -> None:
    """Send `count` requests of each kind to the name server."""
    await _flood(target.name_server, NAME_SERVER_CODES, tally, count)
    await target.hold()


async def _flood(address: Address, codes: Collection[int], tally: Tally, count: int) -> None:
    for code in codes:
        async with attack_connections(address, tally, _CONNECTIONS) as connections:
            share = [plausible_request(code, number) for number in range(count // _CONNECTIONS)]
            await asyncio.gather(*(connection.send(share) for connection in connections))
