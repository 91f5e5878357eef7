"""From a request to its answer: one table finds the handler, one place turns errors into codes.

Handlers come in two kinds. Most are coroutines, `async (request, context, call)`; each runs as a task. The few on the
hot path are plain functions, `(command, channel)`, which answer at once, or give back an awaitable when they cannot.

1. Every request that wants an answer gets exactly one, whatever its handler does.
2. One-way requests get none, not even errors.
3. A peer may have only so many requests in hand; past that it is told to try again later.
4. What `GuardedRequestDispatcher` refuses reaches no handler.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from sparrow.model.errors import Busy, Closed, SparrowError
from sparrow.net.channel import Channel
from sparrow.wire import bodies, headers
from sparrow.wire.codes import GO_AWAY_AFTER_VERSION, ResponseCode
from sparrow.wire.error_codes import response_for_error
from sparrow.wire.frame import ONE_WAY_FLAG, RemotingCommand, encode, encode_without_body, response_to
from sparrow.wire.headers import Header

log = logging.getLogger(__name__)

_GIVE_UP_S = 0.5
REQUESTS_IN_PROGRESS_MAX = 4096
"""Requests of one peer that may be worked on at a time."""

C = TypeVar("C")
B = TypeVar("B")


class HandlerResponse(msgspec.Struct, frozen=True):
    """What a handler says when it has more to say than a header."""

    header: Header | None = None
    body: bytes | Sequence[bytes | memoryview] = b""
    code: int = ResponseCode.SUCCESS
    remark: str | None = None

    @classmethod
    def of(cls, body: object, header: Header | None = None) -> HandlerResponse:
        """With a body struct, as JSON."""
        return cls(header, bodies.write(body))


class RequestContext(msgspec.Struct, frozen=True):
    """The frame a request came in, and who sent it."""

    command: RemotingCommand
    channel: Channel

    def body(self, kind: type[B]) -> B:
        return bodies.read(kind, self.command.body)


HandlerResult = Header | HandlerResponse | None
RequestHandler = Callable[[Any, C, RequestContext], Coroutine[Any, Any, HandlerResult]]
InlineHandler = Callable[[RemotingCommand, Channel], "bytes | Awaitable[bytes | None] | None"]
"""Gives back the frame of the answer, an awaitable of it, or None when it has parked the request or needs no answer."""


class RequestDispatcher(Generic[C]):
    """Serves a context (a broker, a name server) to channels, by tables of handlers."""

    def __init__(
        self, context: C, handlers: Mapping[int, RequestHandler[C]], plain: Mapping[int, InlineHandler] | None = None
    ) -> None:
        self._context, self._handlers = context, handlers
        self._plain = {int(code): handler for code, handler in (plain or {}).items()}
        self._unanswered: set[asyncio.Future[bytes | None]] = set()
        self.is_stopping = False

    def __call__(self, command: RemotingCommand, channel: Channel) -> None:
        plain = self._plain.get(command.code)
        if plain is None or self.is_stopping or channel.requests_in_progress >= REQUESTS_IN_PROGRESS_MAX:
            self._start(command, channel, self._handled(command, channel))
            return
        try:
            said = plain(command, channel)
        except Exception as error:
            said = encode_error(command, error)
        if said is None:
            return
        if isinstance(said, bytes):
            channel.write(said)
        else:
            self._start(command, channel, said)

    def _start(self, command: RemotingCommand, channel: Channel, work: Awaitable[bytes | None]) -> None:
        channel.requests_in_progress += 1
        future = asyncio.ensure_future(work)
        self._unanswered.add(future)
        future.add_done_callback(partial(self._finish, command, channel))

    def _finish(self, command: RemotingCommand, channel: Channel, future: asyncio.Future[bytes | None]) -> None:
        """Answer, also when the work failed or was given up before it began."""
        channel.requests_in_progress -= 1
        self._unanswered.discard(future)
        if future.cancelled():
            said = encode_error(command, Closed("the server"))
        elif (error := future.exception()) is not None:
            said = encode_error(command, error)
        else:
            said = future.result()
        if said is not None:
            channel.write(said)

    async def _handled(self, command: RemotingCommand, channel: Channel) -> bytes | None:
        if self.is_stopping:
            if command.version > GO_AWAY_AFTER_VERSION:
                return encode_response(
                    command, HandlerResponse(code=ResponseCode.GO_AWAY, remark="the server is stopping: go elsewhere")
                )
            raise Closed("the server")
        if channel.requests_in_progress > REQUESTS_IN_PROGRESS_MAX:
            raise Busy(f"{channel.requests_in_progress} requests of this connection are in hand")
        handler = self._handlers.get(command.code)
        if handler is None:
            # The leading blank is RocketMQ's; somebody may be matching it.
            remark = f" request type {command.code} not supported"
            return encode_response(
                command, HandlerResponse(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
            )
        request = headers.read(headers.request_header_type(command.code), command.ext)
        said = await handler(request, self._context, RequestContext(command, channel))
        return encode_response(command, said if isinstance(said, HandlerResponse) else HandlerResponse(said))

    async def stop(self, grace_s: float) -> None:
        """Refuse what is new, and give what is in hand a while to finish."""
        self.is_stopping = True
        deadline = asyncio.get_running_loop().time() + grace_s
        while self._unanswered and (left := deadline - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(set(self._unanswered), timeout=left)
        given_up = set(self._unanswered)
        for future in given_up:
            future.cancel()
        if given_up:  # a turn of the loop for their answers
            await asyncio.wait(given_up, timeout=_GIVE_UP_S)


class GuardedRequestDispatcher(RequestDispatcher[C]):
    """The same, but every request is looked at first. Who needs no guard does not pay for one."""

    def __init__(
        self,
        context: C,
        handlers: Mapping[int, RequestHandler[C]],
        plain: Mapping[int, InlineHandler] | None = None,
        *,
        check: Callable[[RemotingCommand], None],
    ) -> None:
        """`check` raises what the peer is to be told."""
        super().__init__(context, handlers, plain)
        self._check = check

    def __call__(self, command: RemotingCommand, channel: Channel) -> None:
        try:
            self._check(command)
        except Exception as error:
            log.info("a request was refused", extra={"peer": channel.address, "code": command.code, "why": str(error)})
            said = encode_error(command, error)
            if said is not None:
                channel.write(said)
            return
        super().__call__(command, channel)


def encode_response(command: RemotingCommand, said: HandlerResponse) -> bytes | None:
    """The frame that answers a request; None if it wants no answer."""
    if command.flag & ONE_WAY_FLAG:
        return None
    ext = headers.write(said.header) if said.header is not None else None
    if isinstance(said.body, bytes | bytearray | memoryview):
        return encode(response_to(command, said.code, ext, said.body, said.remark))
    size = sum(map(len, said.body))
    start = encode_without_body(response_to(command, said.code, ext, b"", said.remark), body_bytes=size)
    return b"".join((start, *said.body))


def encode_error(command: RemotingCommand, error: BaseException) -> bytes | None:
    """The frame that tells a peer what went wrong with its request."""
    if not isinstance(error, SparrowError):
        log.error("a handler failed", extra={"code": command.code}, exc_info=error)
    code, remark = response_for_error(error)
    return encode_response(command, HandlerResponse(code=code, remark=remark))
