"""The signatures of a connection: how a client signs what it sends, and how a server verifies what it receives."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from sparrow.model.access.token import Credentials
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import RemotingCommand
from sparrow.wire.headers import Header
from sparrow.wire.signing import COUNT_FIELD, Challenge, accept_once, has_valid_signature, sign, sign_once

if TYPE_CHECKING:
    from sparrow.net.channel import Channel, RequestSigner


async def make_signer(channel: Channel, credentials: Credentials, *, timeout_ms: int) -> RequestSigner:
    """Ask the server for a challenge, and return what signs the requests of the channel.

    Servers without challenges, RocketMQ's among them, get RocketMQ's signatures.
    """
    answer = await channel.request(RequestCode.GET_CHALLENGE, timeout_ms=timeout_ms)
    if answer.code != ResponseCode.SUCCESS:
        return partial(_sign_like_rocketmq, credentials)
    return partial(_sign, credentials, Challenge(bytes(answer.body).decode("ascii", "replace")))


def _sign(
    credentials: Credentials, challenge: Challenge, code: int, header: Header | None, body: bytes | memoryview
) -> Header:
    return sign_once(code, header, body, credentials, challenge)


def _sign_like_rocketmq(credentials: Credentials, code: int, header: Header | None, body: bytes | memoryview) -> Header:
    return sign(header, body, credentials)


def is_signed_with(
    secret_key: str,
    command: RemotingCommand,
    fields: Mapping[str, str],
    challenge: Challenge | None,
    *,
    requires_challenge: bool,
) -> bool:
    """Return whether a request has a valid signature of that key. `challenge`: what its connection was given."""
    if COUNT_FIELD in fields:
        return challenge is not None and accept_once(command.code, fields, command.body, secret_key, challenge)
    return not requires_challenge and has_valid_signature(fields, command.body, secret_key)
