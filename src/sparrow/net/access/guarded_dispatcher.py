"""`GuardedRequestDispatcher`: a dispatcher that checks who makes a request before it reaches a handler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from sparrow.net.access.audit_log import AccessRefused, AuditLog
from sparrow.net.channel import Channel
from sparrow.net.dispatcher import (
    BODY_BYTES_MAX,
    HandlerResponse,
    InlineHandler,
    RequestDispatcher,
    RequestHandler,
    encode_error,
    encode_response,
)
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import RemotingCommand, response_code_of
from sparrow.wire.signing import Challenge

C = TypeVar("C")


class GuardedRequestDispatcher(RequestDispatcher[C]):
    """A dispatcher that checks every request first. Servers without checks use the base class, which costs nothing."""

    def __init__(
        self,
        context: C,
        handlers: Mapping[int, RequestHandler[C]],
        plain: Mapping[int, InlineHandler] | None = None,
        *,
        check: Callable[[RemotingCommand, Challenge | None, str], str | None],
        audit: AuditLog,
        body_limits: Mapping[int, int] | None = None,
    ) -> None:
        """Create a dispatcher; `check` raises the error that the peer gets.

        It receives the challenge of the connection, if the peer has asked for one, and the address of the peer without
        its port. It returns the access key whose signature it has verified; None for a request that needs none.
        Refusals, and the actions that `audit` has, are logged there.
        """
        super().__init__(context, handlers, plain, body_limits=body_limits)
        self._check, self._audit = check, audit

    def __call__(self, command: RemotingCommand, channel: Channel) -> None:
        if len(command.body) <= BODY_BYTES_MAX or len(command.body) <= self._body_limits.get(command.code, 0):
            if command.code == RequestCode.GET_CHALLENGE:
                self._give_challenge(command, channel)
                return
            try:
                access_key = self._check(command, channel.challenge, channel.host)
            except AccessRefused as refusal:
                self._audit.refused(command, channel.address, refusal)
                if channel.gate is not None:
                    channel.gate.refusals.note(refusal)
                response = encode_error(command, refusal)
                if response is not None:
                    channel.write(response)
                return
            except Exception as error:
                self._refuse(command, channel, error)
                return
            gate = channel.gate
            if gate is not None and (busy := gate.token_refusal(access_key, command)) is not None:
                self._refuse(command, channel, busy)
                return
        super().__call__(command, channel)

    def _answered(self, command: RemotingCommand, channel: Channel, response: bytes | None) -> None:
        if command.code in self._audit.actions:
            code = response_code_of(response) if response is not None else ResponseCode.SUCCESS
            self._audit.done(command, channel.address, code)

    def _give_challenge(self, command: RemotingCommand, channel: Channel) -> None:
        channel.challenge = Challenge()
        response = encode_response(command, HandlerResponse(body=channel.challenge.text.encode()))
        if response is not None:
            channel.write(response)
