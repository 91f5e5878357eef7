"""Call plans: where each parameter of a handler gets its argument from, derived once from its annotations.

Headers, Event, CancelToken and the session and connection types of SQLAlchemy are recognised by type. The first other
parameter receives the payload. Further ones come from providers, or keep their defaults.
"""

from __future__ import annotations

import inspect
import threading
from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Union

import msgspec

from sparrow.bus.codec.field_naming import split_annotation
from sparrow.bus.codec.headers import Headers
from sparrow.bus.codec.payload import DecodePayload, FieldNaming, payload_decoder
from sparrow.bus.errors import SubscriptionError
from sparrow.bus.handlers.signatures import annotation_of, handler_name, is_coroutine, parameters_of

Provider = Callable[[], Any]
SessionKind = Literal["sync", "async"]


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """An event with its metadata, for a handler that needs more than the payload."""

    id: str
    name: str
    group: str
    headers: Headers
    value: Any
    """The payload, decoded as the handler's annotation says."""
    retries: int
    """Failed attempts before this one."""
    added: datetime
    key: str | None = None


class CancelToken:
    """Tells a handler to stop, because the worker stops or the attempt has timed out.

    ```python
    for row in rows:
        cancel.raise_if_cancelled()
        ...
    ```
    """

    def __init__(self) -> None:
        self._event = threading.Event()

    @property
    def is_cancelled(self) -> bool:
        """Whether the handler should stop."""
        return self._event.is_set()

    def cancel(self) -> None:
        """Ask the handler to stop."""
        self._event.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleep until cancelled or until the timeout, in a thread. Return whether it was cancelled."""
        return self._event.wait(timeout_s)

    def raise_if_cancelled(self) -> None:
        """Raise `CancelledError` if the handler should stop."""
        if self._event.is_set():
            raise CancelledError("the handler was asked to stop")


@dataclass(frozen=True)
class CallPlan:
    """The kind of a handler, and the sources of its arguments."""

    name: str
    is_async: bool
    session_kind: SessionKind | None
    wants_connection: bool
    """The handler asks for a Connection or AsyncConnection instead of a session."""
    decode: DecodePayload
    """Decodes one body, also for a batch handler."""
    is_batch: bool
    payload_annotation: Any
    """None: the handler takes no payload."""
    positional: tuple[str | Provider, ...]
    named: tuple[tuple[str, str | Provider], ...]

    @property
    def wants_cancel(self) -> bool:
        return _CANCEL in self.positional or _CANCEL in [source for _, source in self.named]

    def arguments(
        self, payload: Any, headers: Any, event: Any, session: Any = None, cancel: CancelToken | None = None
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the positional and keyword arguments of a call.

        For a batch, `payload`, `headers` and `event` are lists. `session` is the session or connection the handler asks
        for.
        """
        given = {_PAYLOAD: payload, _HEADERS: headers, _EVENT: event, _SESSION: session, _CANCEL: cancel}
        args = tuple([given[each] if isinstance(each, str) else each() for each in self.positional])
        return args, {name: given[each] if isinstance(each, str) else each() for name, each in self.named}


def plan_call(
    handler: Callable[..., Any],
    *,
    naming: FieldNaming | None = None,
    batch: bool = False,
    providers: Mapping[Any, Provider] | None = None,
) -> CallPlan:
    """Return the call plan of a handler; raise `SubscriptionError` if it cannot be called."""
    name = handler_name(handler)
    parameters = parameters_of(handler, name)
    sources: dict[str, str | Provider] = {}
    handle: _Handle | None = None
    annotations: dict[str, Any] = {}
    for parameter in parameters:
        annotation = annotations[parameter.name] = annotation_of(handler, parameter, name)
        special = _special(annotation)
        if special is None:
            bare = _without_none(annotation)
            provider = _provider(bare, providers or {})
            if provider is not None:
                sources[parameter.name] = provider
            continue
        what, is_list = special
        if isinstance(what, _Handle):
            if handle is not None:
                raise SubscriptionError(
                    f"{name} has two session or connection parameters: declare one, and get the other from it"
                )
            handle, what = what, _SESSION
        if is_list != (batch and what in _LISTED):
            expected = "a batch: say list[...] in" if batch and what in _LISTED else "one message, not a list, in"
            raise SubscriptionError(f"{name} is given {expected} parameter {parameter.name!r}")
        sources[parameter.name] = what

    is_async = is_coroutine(handler, name)
    if handle is not None and handle.kind != ("async" if is_async else "sync"):
        shape = "async def" if is_async else "a plain def"
        parameter_name = next(key for key, source in sources.items() if source == _SESSION)
        raise SubscriptionError(
            f"{name} is {shape}, and its parameter {parameter_name!r} is a{'n' if handle.kind == 'async' else ''} "
            f"{handle.name}: ask for {handle.counterpart}, or make it {'a plain def' if is_async else 'async def'}"
        )

    payload = _payload_parameter([each for each in parameters if each.name not in sources])
    if payload is not None:
        sources[payload.name] = _PAYLOAD
    for parameter in parameters:
        if parameter.name not in sources and parameter.default is parameter.empty:
            raise SubscriptionError(
                f"parameter {parameter.name!r} of {name} has no source: "
                "give it a default, or register a provider for its type"
            )
    wanted = annotations[payload.name] if payload is not None else Any
    return CallPlan(
        name=name,
        is_async=is_async,
        session_kind=None if handle is None else handle.kind,
        wants_connection=handle is not None and handle.is_connection,
        decode=_decode(name, payload, _item(wanted, name) if batch and payload is not None else wanted, naming),
        is_batch=batch,
        payload_annotation=None if payload is None else wanted,
        **_slots(parameters, sources),
    )


# -- what a parameter is ---------------------------------------------------------------------------------------------

_PAYLOAD, _HEADERS, _EVENT, _SESSION, _CANCEL = "payload", "headers", "event", "session", "cancel"
_LISTED = (_HEADERS, _EVENT)


@dataclass(frozen=True)
class _Handle:
    name: str
    kind: SessionKind
    counterpart: str

    @property
    def is_connection(self) -> bool:
        return self.name.endswith("Connection")


# By name, because SQLAlchemy is an extra: a handler annotated with it has imported it.
_HANDLES = {
    ("sqlalchemy.orm.session", "Session"): _Handle("Session", "sync", "AsyncSession"),
    ("sqlalchemy.ext.asyncio.session", "AsyncSession"): _Handle("AsyncSession", "async", "Session"),
    ("sqlalchemy.engine.base", "Connection"): _Handle("Connection", "sync", "AsyncConnection"),
    ("sqlalchemy.ext.asyncio.engine", "AsyncConnection"): _Handle("AsyncConnection", "async", "Connection"),
}


def _special(annotation: Any) -> tuple[str | _Handle, bool] | None:
    """Return what kind of special parameter the annotation names, and whether as a list."""
    bare = _without_none(annotation)
    _, origin, arguments = split_annotation(bare)
    is_list = origin in (list, Sequence) and len(arguments) == 1
    cls = _without_none(arguments[0]) if is_list else bare
    if not isinstance(cls, type):
        return None
    for known, what in ((Headers, _HEADERS), (Event, _EVENT), (CancelToken, _CANCEL)):
        if issubclass(cls, known):
            return what, is_list
    for ancestor in cls.__mro__:
        handle = _HANDLES.get((ancestor.__module__, ancestor.__qualname__))
        if handle is not None:
            return handle, is_list
    return None


def _provider(bare: Any, providers: Mapping[Any, Provider]) -> Provider | None:
    try:
        return providers.get(bare)
    except TypeError:  # an annotation that cannot be hashed has no provider
        return None


def _without_none(annotation: Any) -> Any:
    annotation, origin, arguments = split_annotation(annotation)
    if origin is Union:
        members = [member for member in arguments if member is not type(None)]
        if len(members) == 1:
            return _without_none(members[0])
    return annotation


def _item(annotation: Any, name: str) -> Any:
    """Return T of list[T]."""
    bare, origin, arguments = split_annotation(annotation)
    if bare in (Any, inspect.Parameter.empty, list, Sequence):
        return Any
    if origin in (list, Sequence):
        return arguments[0]
    raise SubscriptionError(f"{name} receives batches: annotate its payload as list[...], not {annotation!r}")


def _decode(name: str, payload: inspect.Parameter | None, annotation: Any, naming: FieldNaming | None) -> DecodePayload:
    try:
        decode = payload_decoder(annotation, naming=naming)
    except Exception as error:  # msgspec, pydantic and typing raise different errors
        where = payload.name if payload else ""
        raise SubscriptionError(f"the payload parameter {where!r} of {name} cannot be decoded: {error}") from error
    if payload is None or payload.default is payload.empty:
        return decode
    default = payload.default
    return lambda body: decode(body) if body else default


def _payload_parameter(unclaimed: list[inspect.Parameter]) -> inspect.Parameter | None:
    """Return the first parameter that can be positional, or else the first required keyword-only one."""
    for parameter in unclaimed:
        if parameter.kind is not parameter.KEYWORD_ONLY:
            return parameter
    return next((each for each in unclaimed if each.default is each.empty), None)


def _slots(parameters: list[inspect.Parameter], sources: Mapping[str, str | Provider]) -> dict[str, Any]:
    positional = [each for each in parameters if each.kind is each.POSITIONAL_ONLY]
    named = [each for each in parameters if each.kind is not each.POSITIONAL_ONLY]
    # A positional-only parameter with a default must be filled as well if another one follows it.
    return {
        "positional": tuple(sources.get(each.name) or _giving(each.default) for each in positional),
        "named": tuple((each.name, sources[each.name]) for each in named if each.name in sources),
    }


def _giving(value: Any) -> Provider:
    return lambda: value
