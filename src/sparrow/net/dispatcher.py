"""The dispatch of requests to handlers by request code, and the conversion of errors into response codes.

There are two kinds of handlers. Most are coroutine functions, `async (request, context, request_context)`, each of
which runs as a task. The few on the hot path are plain functions, `(command, channel)`, which return the response at
once, or an awaitable when they cannot. Requests that wait for the same event share its future (`DeferredResponse`).

1. Every request that wants a response gets exactly one, whatever its handler does.
2. One-way requests get no response, not even an error.
3. A peer may have a limited number of requests in progress; further ones are refused as busy.
4. Requests that `GuardedRequestDispatcher` refuses reach no handler.
5. The body of a request is limited by its code, before the request is authenticated or its body is decoded.
6. Requests in progress have a budget of bytes; those of an address that has used up its share are refused as busy.
7. A handler that awaits starts only when its peer reads the responses to earlier requests.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import msgspec

from sparrow.model.errors import Busy, Closed, SparrowError, TooLarge
from sparrow.model.errors.base import by_limit
from sparrow.net.channel import Channel
from sparrow.net.limits.read_gate import DEFERRED_BYTES_MAX, ReadGate, request_bytes_of
from sparrow.net.request_meter import RequestMeter
from sparrow.wire import bodies, headers
from sparrow.wire.codes import GO_AWAY_AFTER_VERSION, ResponseCode
from sparrow.wire.error_codes import REMARK_CHARS_MAX, response_for_error
from sparrow.wire.frame import (
    FRAME_PREFIX_BYTES,
    ONE_WAY_FLAG,
    RemotingCommand,
    encode,
    encode_without_body,
    response_to,
)
from sparrow.wire.headers import Header

log = logging.getLogger(__name__)

_GIVE_UP_S = 0.5
_BRACE, _ZERO = b"{0"
_CODE_AT = FRAME_PREFIX_BYTES + len('{"code":')
"""Where a successful response in JSON has the code 0. No other code begins so, and no binary header with a brace."""
_match_binary_success = re.compile(rb"....\x01...\0\0", re.DOTALL).match
"""Matches a response with a binary header and the code 0."""
REQUESTS_IN_PROGRESS_MAX = 4096
"""Limit of requests of one peer that are in progress."""
BODY_BYTES_MAX = 1 << 20
"""Limit of a request's body, where a server has no other limit for the code."""

_Deferred = tuple[RemotingCommand, Channel, Callable[[BaseException | None], bytes | None], float, int]
"""A request, its channel, the encoder of its response, when it arrived, and its bytes."""

C = TypeVar("C")
B = TypeVar("B")


class HandlerResponse(msgspec.Struct, frozen=True):
    """The response of a handler with a body, a code or a remark."""

    header: Header | None = None
    body: bytes | Sequence[bytes | memoryview] = b""
    code: int = ResponseCode.SUCCESS
    remark: str | None = None

    @classmethod
    def of(cls, body: object, header: Header | None = None) -> HandlerResponse:
        """Return a response with a body struct, encoded as JSON."""
        return cls(header, bodies.write(body))


class RequestContext(msgspec.Struct, frozen=True):
    """The frame of a request, and the channel that it arrived on."""

    command: RemotingCommand
    channel: Channel

    def body(self, kind: type[B]) -> B:
        """Decode the body of the request."""
        return bodies.read_request(kind, self.command.body)


class DeferredResponse:
    """A response that is encoded once a future is done. Many requests may share the future."""

    __slots__ = ("encode", "future")

    def __init__(self, future: asyncio.Future[None], encode: Callable[[BaseException | None], bytes | None]) -> None:
        """Create a response. `encode` receives the exception of the future, if it failed."""
        self.future, self.encode = future, encode

    def __await__(self) -> Generator[Any, None, bytes | None]:
        yield from asyncio.wait([self.future]).__await__()
        return self.encode(_error_of(self.future))


HandlerResult = Header | HandlerResponse | None
RequestHandler = Callable[[Any, C, RequestContext], Coroutine[Any, Any, HandlerResult]]
InlineResult = bytes | Awaitable[bytes | None] | None
"""The response frame, an awaitable of it, or None if the handler has parked the request or it needs no response."""
InlineHandler = Callable[[RemotingCommand, Channel], InlineResult]


class RequestDispatcher(Generic[C]):
    """Serves a context (a broker, a name server) to channels, by tables of handlers."""

    def __init__(
        self,
        context: C,
        handlers: Mapping[int, RequestHandler[C]],
        plain: Mapping[int, InlineHandler] | None = None,
        *,
        body_limits: Mapping[int, int] | None = None,
    ) -> None:
        """Create a dispatcher. `body_limits` has the codes whose body may be larger than `BODY_BYTES_MAX`."""
        self._context, self._handlers = context, handlers
        self._body_limits = {int(code): limit for code, limit in (body_limits or {}).items()}
        self._plain = {int(code): handler for code, handler in (plain or {}).items()}
        self._unanswered: dict[asyncio.Future[bytes | None], int] = {}
        """Requests in progress that have a future of their own, with their code."""
        self._deferred: dict[asyncio.Future[None], list[_Deferred]] = {}
        """Requests in progress that share a future."""
        self.is_stopping = False
        self.meter: RequestMeter | None = None
        """Measures the requests; None: they are not measured."""

    def __call__(self, command: RemotingCommand, channel: Channel) -> None:
        if len(command.body) > BODY_BYTES_MAX and len(command.body) > self._body_limits.get(command.code, 0):
            self._refuse(command, channel, self._body_too_large(command))
            return
        gate = channel.gate
        if gate is not None and gate.requests.is_tight:
            refusal = gate.requests.refusal(channel.host, request_bytes_of(command))
            if refusal is not None:
                self._refuse(command, channel, refusal)
                return
        plain = self._plain.get(command.code)
        if plain is None or self.is_stopping or channel.requests_in_progress >= REQUESTS_IN_PROGRESS_MAX:
            self._start(command, channel, self._handled(command, channel)).add_done_callback(
                partial(_count_unready, channel)
            )
            return
        try:
            response = plain(command, channel)
        except Exception as error:
            response = _encode_refusal(command, error, channel)
        if response is None:
            if self.meter is not None and command.flag & ONE_WAY_FLAG:  # else it is parked
                self.meter.count_response(command.code, None, channel.read_began_s)
            return
        if isinstance(response, bytes):
            channel.write(response)
            meter = self.meter
            if meter is not None:
                if _is_success(response):
                    answered, code = meter.answered, command.code
                    if code in answered:
                        answered[code] += 1
                    else:  # the first of this read
                        answered[code] = 1
                        channel.on_read_end = meter.on_read_end
                else:
                    meter.count_response(command.code, response, channel.read_began_s)
        elif isinstance(response, DeferredResponse):
            self._defer(command, channel, response)
        else:
            self._start(command, channel, response)

    def in_progress(self) -> Counter[int]:
        """Return the number of requests in progress, by request code."""
        found = Counter(self._unanswered.values())
        for group in self._deferred.values():
            found.update(command.code for command, *_ in group)
        return found

    def _body_too_large(self, command: RemotingCommand) -> TooLarge:
        limit = self._body_limits.get(command.code, BODY_BYTES_MAX)
        return by_limit("request_size", TooLarge(f"the body of request {command.code}", len(command.body), limit))

    def _refuse(self, command: RemotingCommand, channel: Channel, error: Exception) -> None:
        log.info(
            "request %(code)s of %(peer)s is refused: %(error)s",
            {"code": command.code, "peer": channel.address, "error": error},
        )
        response = _encode_refusal(command, error, channel)
        if response is not None:
            channel.write(response)

    def _start(
        self, command: RemotingCommand, channel: Channel, work: Awaitable[bytes | None]
    ) -> asyncio.Future[bytes | None]:
        channel.requests_in_progress += 1
        size = request_bytes_of(command)
        if channel.gate is not None:
            channel.gate.hold(size)
        if channel.watchdog is not None and isinstance(work, Coroutine):
            work = channel.watchdog.watch(work, command.code, channel)
        future = asyncio.ensure_future(work)
        self._unanswered[future] = command.code
        began_s = time.monotonic()
        future.add_done_callback(partial(self._finish, command, channel, began_s, size))
        return future

    def _finish(
        self,
        command: RemotingCommand,
        channel: Channel,
        began_s: float,
        size: int,
        future: asyncio.Future[bytes | None],
    ) -> None:
        """Send the response, also after an exception or a cancellation."""
        channel.requests_in_progress -= 1
        if channel.gate is not None:
            channel.gate.release(size)
        self._unanswered.pop(future, None)
        if future.cancelled():
            response = encode_error(command, Closed("the server"))
        elif (error := future.exception()) is not None:
            response = _encode_refusal(command, error, channel)
        else:
            response = future.result()
        if response is not None:
            channel.write(response)
        self._answered(command, channel, response)
        if self.meter is not None and (response is not None or command.flag & ONE_WAY_FLAG):  # else it is parked
            self.meter.count_response(command.code, response, began_s)

    def _defer(self, command: RemotingCommand, channel: Channel, response: DeferredResponse) -> None:
        channel.requests_in_progress += 1
        group = self._deferred.get(response.future)
        if group is None:
            group = self._deferred[response.future] = []
            response.future.add_done_callback(self._finish_deferred)
        size, gate = request_bytes_of(command), channel.gate
        if gate is not None:
            gate.deferred_bytes += size
            if gate.deferred_bytes > DEFERRED_BYTES_MAX:
                gate.settle()
        group.append((command, channel, response.encode, channel.read_began_s, size))

    def _finish_deferred(self, future: asyncio.Future[None]) -> None:
        """Send the responses of all requests that waited for a future."""
        if future in self._deferred:  # else the server has stopped
            self._answer_deferred(self._deferred.pop(future), _error_of(future))

    def _answer_deferred(self, requests: list[_Deferred], error: BaseException | None) -> None:
        meter = self.meter
        succeeded: dict[tuple[int, float], int] = {}
        held: dict[ReadGate | None, int] = {}
        for command, channel, encode_answer, began_s, size in requests:
            channel.requests_in_progress -= 1
            gate = channel.gate
            held[gate] = held.get(gate, 0) + size
            try:
                response = encode_answer(error)
            except Exception as failure:
                response = encode_error(command, failure)
            if response is not None:
                channel.write(response)
                if _is_success(response):
                    key = command.code, began_s
                    succeeded[key] = succeeded.get(key, 0) + 1
                    continue
            if meter is not None:
                meter.count_response(command.code, response, began_s)
        for gate, size in held.items():
            if gate is not None:
                gate.release(size)
        if meter is not None:
            for (code, began_s), count in succeeded.items():
                meter.count_successes(code, began_s, count)

    def _answered(self, command: RemotingCommand, channel: Channel, response: bytes | None) -> None:
        """Take notice of a response; None: it was a one-way request, or is parked."""

    async def _handled(self, command: RemotingCommand, channel: Channel) -> bytes | None:
        frame = encode_response(command, await self._response(command, channel))
        if frame is not None:  # other handlers of the peer wait until it is sent
            channel.ready_bytes += len(frame)
        return frame

    async def _response(self, command: RemotingCommand, channel: Channel) -> HandlerResponse:
        if self.is_stopping:
            if command.version > GO_AWAY_AFTER_VERSION:
                return HandlerResponse(code=ResponseCode.GO_AWAY, remark="the server is stopping: use another one")
            raise Closed("the server")
        if channel.requests_in_progress > REQUESTS_IN_PROGRESS_MAX:
            raise by_limit(
                "requests_in_progress",
                Busy(f"{channel.requests_in_progress} requests of this connection are in progress"),
            )
        handler = self._handlers.get(command.code)
        if handler is None:
            # The leading blank is RocketMQ's; programs may compare the text.
            remark = f" request type {command.code} not supported"
            return HandlerResponse(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark)
        request = headers.read(headers.request_header_type(command.code), command.ext)
        if channel.is_crowded:
            await channel.writable()
        result = await handler(request, self._context, RequestContext(command, channel))
        return result if isinstance(result, HandlerResponse) else HandlerResponse(result)

    def _in_progress(self) -> set[asyncio.Future[Any]]:
        return {*self._unanswered, *self._deferred}

    async def stop(self, grace_s: float) -> None:
        """Refuse new requests, and give those in progress some time to finish."""
        self.is_stopping = True
        deadline = asyncio.get_running_loop().time() + grace_s
        while (waiting := self._in_progress()) and (left := deadline - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(waiting, timeout=left)
        while self._deferred:  # others may wait for the same futures, so they are not cancelled
            self._answer_deferred(self._deferred.popitem()[1], Closed("the server"))
        cancelled = set(self._unanswered)
        for future in cancelled:
            future.cancel()
        if cancelled:  # gives their responses an iteration of the loop
            await asyncio.wait(cancelled, timeout=_GIVE_UP_S)


def encode_response(command: RemotingCommand, response: HandlerResponse) -> bytes | None:
    """Return the frame that responds to a request; None for a one-way request."""
    if command.flag & ONE_WAY_FLAG:
        return None
    ext = headers.write(response.header) if response.header is not None else None
    remark = response.remark[:REMARK_CHARS_MAX] if response.remark else None  # it may quote long input
    if isinstance(response.body, bytes | bytearray | memoryview):
        return encode(response_to(command, response.code, ext, response.body, remark))
    size = sum(map(len, response.body))
    start = encode_without_body(response_to(command, response.code, ext, b"", remark), body_bytes=size)
    return b"".join((start, *response.body))


def encode_error(command: RemotingCommand, error: BaseException, *, peer: str = "a peer") -> bytes | None:
    """Return the frame that reports an error to the peer."""
    if not isinstance(error, SparrowError):
        log.error(
            "the handler of request %(code)s of %(peer)s failed",
            {"code": command.code, "peer": peer},
            exc_info=error,
        )
    code, remark = response_for_error(error)
    return encode_response(command, HandlerResponse(code=code, remark=remark))


def _encode_refusal(command: RemotingCommand, error: BaseException, channel: Channel) -> bytes | None:
    """Count an error, and return the frame that reports it."""
    if channel.gate is not None:
        channel.gate.refusals.note(error)
    return encode_error(command, error, peer=channel.address)


def _count_unready(channel: Channel, future: asyncio.Future[bytes | None]) -> None:
    """Note that the response of a handler is written."""
    if not future.cancelled() and future.exception() is None:
        channel.ready_bytes -= len(future.result() or b"")


def _is_success(response: bytes) -> bool:
    """Return whether a response has the code 0, without decoding it (hot path)."""
    is_json = response[_CODE_AT] == _ZERO and response[FRAME_PREFIX_BYTES] == _BRACE
    return is_json or _match_binary_success(response) is not None


def _error_of(future: asyncio.Future[None]) -> BaseException | None:
    """Return the error of a future that is done."""
    return Closed("the server") if future.cancelled() else future.exception()
