"""Options of a Spark data source: name, parser, default and documentation of each, declared in one table.

Spark passes options as strings, with keys in lower case. An unknown option or a value that cannot be parsed is refused,
because a silently ignored option shows up as a bug months later. Errors spell the name as the user should write it.
"""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from sparrow.model.access.token import Credentials
from sparrow.model.errors import Refused

CLIENT_PREFIX = "sparrow."
"""Options with this prefix configure the client that connects to the brokers."""
_SPARK_OPTIONS = frozenset({"path", "checkpointlocation", "queryname", "mergeschema", "outputmode"})
"""Options that Spark itself adds."""


class Option(NamedTuple):
    """One option of a data source."""

    name: str
    """The name that users write."""
    field: str
    """The attribute of the options object."""
    parse: Callable[[str], Any]
    """Convert the text to a value, or raise `ValueError` with a valid example."""
    default: Any
    doc: str
    shown_default: str | None = None
    """The default shown in the documentation, where `default` itself is not readable."""
    old_name: str | None = None
    """The name that version 0.2.0 has, accepted with a warning until 0.3."""


def name_servers_option(note: str = "") -> Option:
    """Return the option `nameServers`, which sources and sinks share. `note` ends its description."""
    return Option(
        "nameServers",
        "name_servers",
        parse_text,
        None,
        f"Name servers, `host:port`, separated by `;`.{note}",
        "`SPARROW_NAME_SERVERS`, else 127.0.0.1:9876",
        old_name="nameserver",
    )


KAFKA_OPTIONS = MappingProxyType(
    {
        "kafka.bootstrap.servers": "nameServers",
        "kafka.group.id": "groupId",
        "topic": "subscribe",
        "topics": "subscribe",
        "groupidprefix": "groupId",
        "kafkaconsumer.polltimeoutms": "pullTimeoutMs",
        "kafka.max.partition.fetch.bytes": "pullMaxBytes",
        "kafka.fetch.max.bytes": "pullMaxBytes",
        "kafka.compression.type": "compress",
        "kafka.acks": "delivery",
        "kafka.enable.idempotence": "delivery",
        "kafka.transactional.id": "delivery",
        "kafka.request.timeout.ms": "sparrow.timeoutMs",
        "kafka.sasl.jaas.config": "sparrow.accessKey",
        "kafka.sasl.mechanism": "sparrow.accessKey",
        "kafka.security.protocol": "sparrow.accessKey",
    }
)
"""Options of Spark's Kafka connector, in lower case, and what they are called here. Others have the same name."""
KAFKA_PREFIX = "kafka."


def parse_options(table: Sequence[Option], given: Mapping[str, str]) -> dict[str, Any]:
    """Return the value of every option in the table, by field name."""
    given = _rename_old_options(table, {name.lower(): text for name, text in given.items()})
    by_name = {option.name.lower(): option for option in table}
    for name in given:
        if name not in by_name and name not in _SPARK_OPTIONS and not name.startswith(CLIENT_PREFIX):
            raise Refused(_unknown_option(name, [option.name for option in table]))
    return {option.field: _value(option, given.get(option.name.lower())) for option in table}


def _rename_old_options(table: Sequence[Option], given: dict[str, str]) -> dict[str, str]:
    for option in table:
        if option.old_name is None or option.old_name.lower() not in given:
            continue
        if option.name.lower() in given:
            raise Refused(f"options {option.old_name!r} and {option.name!r} are the same: remove {option.old_name!r}")
        warnings.warn(
            f"the option {option.old_name} is now called {option.name}; the old name is accepted until 0.3",
            FutureWarning,
            stacklevel=2,
        )
        given = {option.name.lower() if name == option.old_name.lower() else name: given[name] for name in given}
    return given


def _value(option: Option, text: str | None) -> Any:
    if text is None:
        return option.default
    try:
        return option.parse(text.strip())
    except ValueError as cause:
        raise Refused(f"invalid value {text!r} for option {option.name!r}: {cause}") from cause


def _unknown_option(name: str, known: Sequence[str]) -> str:
    ours = KAFKA_OPTIONS.get(name)
    if ours is not None and (ours in known or ours.startswith(CLIENT_PREFIX)):
        at = ", with the address of a name server instead of a broker" if ours == "nameServers" else ""
        whose = "Kafka's" if name.startswith(KAFKA_PREFIX) else "not ours"
        return f"option {name!r} is {whose}: use {ours!r}{at}"
    if ours is not None or name.startswith(KAFKA_PREFIX):
        return f"option {name!r} is Kafka's and has no counterpart here: remove it"
    near = difflib.get_close_matches(name, [each.lower() for each in known], 1)
    meant = next((each for each in known if near and each.lower() == near[0]), None)
    hint = f". Did you mean {meant!r}?" if meant else f". Known options: {', '.join(known)} and {CLIENT_PREFIX}*"
    return f"unknown option {name!r}{hint}"


# -- parsers of values ------------------------------------------------------------------------------------------------


def parse_text(value: str) -> str:
    """Return the value unless it is empty."""
    if not value:
        raise ValueError("the value is empty")
    return value


def parse_boolean(value: str) -> bool:
    """Parse `true` or `false`."""
    try:
        return {"true": True, "false": False}[value.lower()]
    except KeyError:
        raise ValueError("use true or false") from None


def parse_count(value: str) -> int:
    """Parse an integer that is 0 or more."""
    if not value.isdecimal():
        raise ValueError("use 0 or a positive number")
    return int(value)


def parse_positive(value: str) -> int:
    """Parse an integer that is 1 or more."""
    if not value.isdecimal() or int(value) < 1:
        raise ValueError("use a number of 1 or more")
    return int(value)


def choice_parser(*choices: str) -> Callable[[str], str]:
    """Return a parser for one of these values, in any case."""

    def parse_choice(value: str) -> str:
        for choice in choices:
            if value.lower() == choice.lower():
                return choice
        raise ValueError(f"use one of {', '.join(choices)}")

    return parse_choice


_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+)\s*(ms|s|m|h|d)")
_SIZE = re.compile(r"(\d+)\s*([kmg]?)i?b?", re.IGNORECASE)


def parse_duration_ms(value: str) -> int:
    """Parse `15m`, `30s` or `500ms`; a bare number is milliseconds."""
    if value.isdigit():
        return int(value)
    matched = _DURATION.fullmatch(value)
    if matched is None:
        raise ValueError("use a duration such as 30s, 15m or 2h")
    return int(matched[1]) * _UNITS_MS[matched[2]]


def parse_size_bytes(value: str) -> int:
    """Parse `4m`, `64k` or `1g`; a bare number is bytes."""
    matched = _SIZE.fullmatch(value)
    if matched is None or int(matched[1]) < 1:
        raise ValueError("use a size such as 4194304, 512k or 4m")
    return int(matched[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[matched[2].lower()]


def json_parser(kind: Any, example: str) -> Callable[[str], Any]:
    """Return a parser for JSON of this type."""

    def parse_json(value: str) -> Any:
        try:
            return msgspec.json.decode(value, type=kind)
        except msgspec.DecodeError as cause:
            raise ValueError(f"{cause}; use JSON such as {example}") from cause

    return parse_json


# -- options of the client --------------------------------------------------------------------------------------------


class ClientOptions(msgspec.Struct, frozen=True):
    """How to reach the brokers. Tasks with equal options share one client."""

    name_servers: str
    credentials: Credentials | None = None
    timeout_ms: int = 30_000


CLIENT_OPTIONS: tuple[Option, ...] = (
    Option("sparrow.accessKey", "access_key", parse_text, None, "Access key of the token that signs requests.", "none"),
    Option("sparrow.secretKey", "secret_key", parse_text, None, "Secret key of that token.", "none"),
    Option("sparrow.timeoutMs", "timeout_ms", parse_positive, 30_000, "Timeout of one request."),
)


def select_client_options(given: Mapping[str, str]) -> dict[str, str]:
    """Return the `sparrow.*` options, which a source or sink passes on to its client."""
    return {name: text for name, text in given.items() if name.lower().startswith(CLIENT_PREFIX)}


def parse_client_options(name_servers: str, given: Mapping[str, str]) -> ClientOptions:
    """Parse the `sparrow.*` options."""
    ours = select_client_options(given)
    parsed = parse_options(CLIENT_OPTIONS, ours)
    unknown = set(map(str.lower, ours)) - {option.name.lower() for option in CLIENT_OPTIONS}
    if unknown:
        raise Refused(_unknown_option(min(unknown), [option.name for option in CLIENT_OPTIONS]))
    credentials = None
    if parsed["access_key"] or parsed["secret_key"]:
        credentials = Credentials(parsed["access_key"] or "", parsed["secret_key"] or "")
    return ClientOptions(name_servers, credentials, parsed["timeout_ms"])
