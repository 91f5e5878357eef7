"""Checks of options and arguments: names, types, ranges and words, read from the annotations of the `*Options` types.

A refusal says which option it is, what was given, what may be given, and what was probably meant.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import datetime
from difflib import get_close_matches
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from sparrow.client.handler_checks import is_coroutine_function
from sparrow.model.errors import SettingsError

_OTHER_NAMES = {
    "auto_offset_reset": "consume_from",
    "start": "consume_from",
    "start_from": "consume_from",
    "from_where": "consume_from",
    "message_model": "mode",
    "bootstrap_servers": "name_servers",
    "name_server": "name_servers",
    "namesrv_addr": "name_servers",
    "servers": "name_servers",
    "group_id": "group",
    "consumer_group": "group",
    "producer_group": "group",
    "timeout": "timeout_ms",
    "request_timeout_ms": "timeout_ms",
    "linger": "linger_ms",
    "batch_size": "batch_bytes_max",
    "buffer_memory": "unsent_bytes_max",
    "enable_idempotence": "idempotent",
    "partitioner": "selector",
    "max_retries": "retries",
    "visibility_timeout": "invisible_ms",
    "client_id": "instance_name",
    "token": "credentials",
}
"""What Kafka's, RocketMQ's and other clients call our options."""
_OTHER_WORDS = {
    "broadcasting": "broadcast",
    "clustering": "cluster",
    "earliest": "first",
    "beginning": "first",
    "oldest": "first",
    "consume_from_first_offset": "first",
    "latest": "last",
    "end": "last",
    "newest": "last",
    "consume_from_last_offset": "last",
}


def refuse_unknown(owner: str, given: Iterable[str], known: Iterable[str], *, others: Iterable[str] = ()) -> None:
    """Raise `TypeError` if an option is none of the known ones. `others`: arguments that may be meant as well."""
    options = sorted(known)
    unknown = [name for name in given if name not in options]
    if not unknown:
        return
    guesses = {name: _nearest_name(name, [*others, *options]) for name in unknown}
    hints = [f"did you mean {guess}?" for guess in guesses.values() if guess is not None]
    advice = " ".join(hints) if len(hints) == len(unknown) else f"its options are {', '.join(options)}"
    raise TypeError(f"{owner} has no option {', '.join(unknown)}; {advice}")


def validate_options(client: str, given: Mapping[str, Any], kind: type) -> None:
    """Raise `SettingsError` for a value that the annotation of its option in `kind`, a `TypedDict`, does not allow."""
    hints = get_type_hints(kind, include_extras=True)
    for name, value in given.items():
        validate_value(name, value, hints[name], client)


def validate_value(name: str, value: object, hint: Any, where: str) -> None:
    """Raise `SettingsError` unless the value fits the annotation: its type, its range, or one of its words."""
    allowed = _alternatives(hint)
    if any(_fits(value, one) for one in allowed):
        return
    raise SettingsError(name, value, where, _advice(value, allowed))


def _alternatives(hint: Any) -> list[Any]:
    if get_origin(hint) in (Union, UnionType):
        return [one for part in get_args(hint) for one in _alternatives(part)]
    return [hint]


def _fits(value: object, hint: Any) -> bool:
    kind, limits = _limits(hint)
    origin = get_origin(kind)
    if origin is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if _is_callable(kind):
        return callable(value) and (_may_await(kind) or not is_coroutine_function(value))
    if kind is int or kind is float:
        is_number = isinstance(value, int | float if kind is float else int) and not isinstance(value, bool)
        return is_number and all(value >= limit.ge for limit in limits if limit.ge is not None)  # type: ignore[operator]
    if kind is datetime:
        return isinstance(value, datetime) and value.utcoffset() is not None
    return isinstance(value, NoneType if kind is None else kind)


def _limits(hint: Any) -> tuple[Any, list[msgspec.Meta]]:
    if get_origin(hint) is not Annotated:
        return hint, []
    kind, *notes = get_args(hint)
    return kind, [note for note in notes if isinstance(note, msgspec.Meta)]


def _is_callable(kind: Any) -> bool:
    return get_origin(kind) is Callable


def _may_await(kind: Any) -> bool:
    """Return whether the annotation of a function allows a coroutine function."""
    returned = get_args(kind)[-1]
    return any((get_origin(one) or one) is Awaitable for one in _alternatives(returned))


def _advice(value: object, allowed: list[Any]) -> str:
    words = [word for one in allowed if get_origin(one) is Literal for word in get_args(one)]
    said = [*map(repr, words), *(_described(one) for one in allowed if get_origin(one) is not Literal)]
    text = said[0] if len(said) == 1 else f"{', '.join(said[:-1])} or {said[-1]}"
    if isinstance(value, datetime) and datetime in allowed:
        # Without a time zone it would mean another moment on another machine.
        return f"{text}: moment.astimezone() is a local time with its zone, datetime.now(UTC) the time now"
    if isinstance(value, str):
        if (meant := nearest_word(value, words)) is not None:
            return f"{text}; did you mean {meant!r}?"
        if any(_limits(one)[0] in (int, float) for one in allowed) and value.replace(".", "", 1).isdigit():
            return f"{text}, without quotes"
    if callable(value) and is_coroutine_function(value) and not words:
        return f"{text}: it is called on the event loop and must return at once"
    return text


def _described(hint: Any) -> str:
    kind, limits = _limits(hint)
    if _is_callable(kind):
        return "a function that may be a coroutine function" if _may_await(kind) else "a plain function"
    if kind is int or kind is float:
        noun = "a whole number" if kind is int else "a number"
        lowest = next((limit.ge for limit in limits if limit.ge is not None), None)
        return noun if lowest is None else f"{noun} from {lowest}"
    if kind is None or kind is NoneType:
        return "None"
    if kind is datetime:
        return "a datetime with a time zone"
    return {bool: "True or False", str: "a text"}.get(kind) or f"a {getattr(kind, '__name__', kind)}"


def nearest_word(word: str, words: Iterable[str]) -> str | None:
    """Return the one of the words that was probably meant; None if none is near."""
    words = list(words)
    translated = _OTHER_WORDS.get(word.lower())
    if translated in words:
        return translated
    return next(iter(get_close_matches(word.lower(), words, 1)), None)


def _nearest_name(name: str, names: list[str]) -> str | None:
    translated = _OTHER_NAMES.get(name)
    if translated in names:
        return translated
    return next(iter(get_close_matches(name, names, 1)), None)
