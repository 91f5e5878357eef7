"""Options of a data source, declared once: how each is read, what it is unless given, and what explains it.

Spark hands options over as strings, with keys in lower case. What cannot be read, or is not known, is refused with the
name as the user should write it: an option that is silently ignored is a bug that shows up months later.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from sparrow.model.errors import Refused
from sparrow.model.token import Credentials

CLIENT_PREFIX = "sparrow."
"""Options with this prefix are for the client that talks to the brokers."""
_OF_SPARK = frozenset({"path", "checkpointlocation", "queryname", "mergeschema", "outputmode"})
"""What Spark itself puts among the options."""


class Option(NamedTuple):
    name: str
    """As users write it."""
    field: str
    """The attribute of the options object."""
    parse: Callable[[str], Any]
    """Text to value; a `ValueError` says what would do."""
    default: Any
    doc: str
    shown_default: str | None = None
    """What the documentation says, where the value itself does not tell."""


def parse_options(table: Sequence[Option], given: Mapping[str, str]) -> dict[str, Any]:
    """The value of every option of the table."""
    given = {name.lower(): text for name, text in given.items()}
    by_name = {option.name.lower(): option for option in table}
    for name in given:
        if name not in by_name and name not in _OF_SPARK and not name.startswith(CLIENT_PREFIX):
            raise Refused(_unknown(name, [option.name for option in table]))
    return {option.field: _value(option, given.get(option.name.lower())) for option in table}


def _value(option: Option, text: str | None) -> Any:
    if text is None:
        return option.default
    try:
        return option.parse(text.strip())
    except ValueError as cause:
        raise Refused(f"the option {option.name!r} cannot be {text!r}: {cause}") from cause


def _unknown(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, [each.lower() for each in known], 1)
    meant = next((each for each in known if near and each.lower() == near[0]), None)
    hint = f": did you mean {meant!r}?" if meant else f"; there are {', '.join(known)} and {CLIENT_PREFIX}*"
    return f"there is no option {name!r}{hint}"


# -- kinds of values --------------------------------------------------------------------------------------------------


def parse_text(value: str) -> str:
    if not value:
        raise ValueError("it is empty")
    return value


def parse_boolean(value: str) -> bool:
    try:
        return {"true": True, "false": False}[value.lower()]
    except KeyError:
        raise ValueError("say true or false") from None


def parse_count(value: str) -> int:
    """A number that may be 0."""
    number = int(value)
    if number < 0:
        raise ValueError("it must not be negative")
    return number


def parse_positive(value: str) -> int:
    number = int(value)
    if number < 1:
        raise ValueError("it must be 1 or more")
    return number


def choice_parser(*words: str) -> Callable[[str], str]:
    def parse_choice(value: str) -> str:
        for word in words:
            if value.lower() == word.lower():
                return word
        raise ValueError(f"say one of {', '.join(words)}")

    return parse_choice


_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d)")
_SIZE = re.compile(r"(\d+)\s*([kmg]?)i?b?", re.IGNORECASE)


def parse_duration_ms(value: str) -> int:
    """`15m`, `30s`, `500ms`; a bare number is milliseconds."""
    if value.isdigit():
        return int(value)
    matched = _DURATION.fullmatch(value)
    if matched is None:
        raise ValueError("say a time such as 30s, 15m or 2h")
    return int(matched[1]) * _UNITS_MS[matched[2]]


def parse_size_bytes(value: str) -> int:
    """`4m`, `64k`, `1g`; a bare number is bytes."""
    matched = _SIZE.fullmatch(value)
    if matched is None or int(matched[1]) < 1:
        raise ValueError("say a size such as 4194304, 512k or 4m")
    return int(matched[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[matched[2].lower()]


def json_parser(kind: Any, example: str) -> Callable[[str], Any]:
    """JSON of this shape."""

    def parse_json(value: str) -> Any:
        try:
            return msgspec.json.decode(value, type=kind)
        except msgspec.DecodeError as cause:
            raise ValueError(f"{cause}; say JSON such as {example}") from cause

    return parse_json


# -- the client -------------------------------------------------------------------------------------------------------


class ClientOptions(msgspec.Struct, frozen=True):
    """How to reach the brokers. Equal ones share their connections."""

    name_servers: str
    credentials: Credentials | None = None
    timeout_ms: int = 30_000


CLIENT_OPTIONS: tuple[Option, ...] = (
    Option(
        "sparrow.accessKey", "access_key", parse_text, None, "The name of the token that signs the requests.", "none"
    ),
    Option("sparrow.secretKey", "secret_key", parse_text, None, "Its secret.", "none"),
    Option("sparrow.timeoutMs", "timeout_ms", parse_positive, 30_000, "How long one request may take."),
)


def select_client_options(given: Mapping[str, str]) -> dict[str, str]:
    """Those that any source or sink passes on to its client."""
    return {name: text for name, text in given.items() if name.lower().startswith(CLIENT_PREFIX)}


def parse_client_options(name_servers: str, given: Mapping[str, str]) -> ClientOptions:
    """From what the user said under `sparrow.`."""
    ours = select_client_options(given)
    said = parse_options(CLIENT_OPTIONS, ours)
    unknown = set(map(str.lower, ours)) - {option.name.lower() for option in CLIENT_OPTIONS}
    if unknown:
        raise Refused(_unknown(min(unknown), [option.name for option in CLIENT_OPTIONS]))
    credentials = None
    if said["access_key"] or said["secret_key"]:
        credentials = Credentials(said["access_key"] or "", said["secret_key"] or "")
    return ClientOptions(name_servers, credentials, said["timeout_ms"])
