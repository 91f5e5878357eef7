"""Options of producers and consumers, written once for both flavours of the client.

`ProducerOptions`, `ConsumerOptions` and `PopConsumerOptions` name and type the keyword arguments of the constructors,
which check what they are given against these annotations; the `*_DEFAULTS` tables hold the values of those that the
caller leaves out.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, TypeVar, cast

import msgspec

from sparrow.client.consume.allocation import AllocationStrategy, averagely
from sparrow.client.consume.priority_lanes import STARVATION_MS
from sparrow.client.option_checks import refuse_unknown, validate_options, validate_value
from sparrow.client.produce.queue_selection import QueueSelector
from sparrow.model.access.token import Credentials
from sparrow.model.message import StoredMessage
from sparrow.model.tls import Tls
from sparrow.model.transaction import TransactionState

DEFAULT_NAME_SERVERS = "127.0.0.1:9876"
NAME_SERVERS_VARIABLE = "SPARROW_NAME_SERVERS"
"""The environment variable with the name servers of clients that are given none."""
DEFAULT_PRODUCER_GROUP = "sparrow_producer"
MESSAGE_BYTES_MAX = 4 * 1024 * 1024
"""Limit of a body and of a batch: the default of RocketMQ's clients and brokers."""

NotNegative = Annotated[int, msgspec.Meta(ge=0)]
AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]

ConsumeMode = Literal["cluster", "broadcast"]
"""`cluster`: the members of a group share the queues. `broadcast`: every member reads all queues."""

StartPosition = Literal["first", "last"] | datetime
"""A position in a queue: its first message, the end after its last message, or the first message stored at a time (a
datetime with a time zone)."""

TransactionChecker = Callable[[StoredMessage], TransactionState | Awaitable[TransactionState]]
"""Returns the state of the transaction that a half message belongs to. Only the asyncio client accepts a coroutine."""


def default_name_servers() -> str:
    """Return the name servers of a client that is given none: `SPARROW_NAME_SERVERS`, or the local one."""
    return os.environ.get(NAME_SERVERS_VARIABLE) or DEFAULT_NAME_SERVERS


class Prefetch(msgspec.Struct, frozen=True, kw_only=True):
    """How far a consumer reads ahead in each queue."""

    count_max: int = 1_000
    """Messages fetched and not yet consumed."""
    bytes_max: int = 64 << 20
    """Bytes of their bodies. A message that is larger than a pull is fetched alone."""
    span_max: int = 20_000
    """Offsets from the first to the last unconsumed message. At most this many are delivered again after a crash."""
    pull_count_max: int = 32
    pull_bytes_max: int = 256 << 10
    long_poll_ms: int = 15_000
    """How long a broker may hold a pull that finds no message (long polling)."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            hint = NotNegative if name == "long_poll_ms" else AtLeastOne
            validate_value(name, getattr(self, name), hint, "Prefetch")


BATCH_PREFETCH = Prefetch(count_max=32_768, span_max=100_000, pull_count_max=8_192, pull_bytes_max=1 << 20)
"""The default of a consumer that takes whole pulls as batches."""


class ProducerOptions(TypedDict, total=False):
    """Keyword arguments of `Producer`."""

    timeout_ms: AtLeastOne
    """For all attempts of a send together."""
    retries: NotNegative
    """Attempts after the first."""
    linger_ms: Annotated[float, msgspec.Meta(ge=0)] | None
    """How long messages wait to be sent in one batch; None sends each in a request of its own."""
    batch_bytes_max: AtLeastOne
    batch_count_max: AtLeastOne
    unsent_bytes_max: AtLeastOne
    """Memory budget of messages that are not acknowledged yet."""
    message_bytes_max: AtLeastOne
    """Limit of a body and of a batch."""
    default_topic_queues: NotNegative
    """Queues of a topic that the first message creates."""
    compress_above_bytes: NotNegative | None
    """Compress longer bodies; None never does."""
    selector: QueueSelector | None
    """Chooses the queue of each message; None uses all queues in turn and avoids slow brokers."""
    transaction_checker: TransactionChecker | None
    """Answers check-backs of transactions. Brokers send them to any producer of the group, so use a group for it."""
    trace: bool
    """Record every send in the trace topic."""
    send_log_level: Literal["debug", "info"]
    """The level at which every send is logged, with the keys and the result of the message."""
    idempotent: bool
    """Store a retried send once. Each message is sent alone, and retried on the same queue only."""
    credentials: Credentials | None
    """Sign every request, for brokers that require tokens."""
    tls: Tls | None
    """Encrypt the connections. None: as the environment variable `SPARROW_TLS_AUTHORITIES` says."""


PRODUCER_DEFAULTS: ProducerOptions = {
    "timeout_ms": 3_000,
    "retries": 2,
    "linger_ms": None,
    "batch_bytes_max": 256 * 1024,
    "batch_count_max": 1024,
    "unsent_bytes_max": 64 * 1024 * 1024,
    "message_bytes_max": MESSAGE_BYTES_MAX,
    "default_topic_queues": 4,
    "compress_above_bytes": 4096,
    "selector": None,
    "transaction_checker": None,
    "trace": False,
    "send_log_level": "debug",
    "idempotent": False,
    "credentials": None,
    "tls": None,
}


class ConsumerOptions(TypedDict, total=False):
    """Keyword arguments of `Consumer`."""

    mode: ConsumeMode
    consume_from: StartPosition
    """Where a group starts in a queue for which it has committed no offset."""
    strategy: AllocationStrategy
    """How the members of a group share the queues; all members must use the same."""
    prefetch: Prefetch | None
    at_most_once: bool
    """Commit a message before it is delivered: it is never delivered again, and lost if its handler does not finish.
    All members must use it."""
    commit_interval_ms: AtLeastOne
    offsets_path: Path | str | None
    """The file in which a broadcast consumer keeps its offsets; None keeps them in memory."""
    retries_max: NotNegative | None
    """After this many retries, a message whose handler fails again becomes a dead letter. None: as the group is
    configured (16 retries); in orderly consumption, without limit."""
    starvation_ms: NotNegative
    """In a topic with priority lanes, a lower priority gets a share of the deliveries once its first message is
    this old; 0 keeps strict priority."""
    trace: bool
    """Record what handlers do in the trace topic."""
    timeout_ms: AtLeastOne
    """Of every request other than a pull."""
    instance_name: str | None
    """The client id is `ip@instance_name`, unique in the group; None makes one up."""
    credentials: Credentials | None
    """Sign every request, for brokers that require tokens."""
    tls: Tls | None
    """Encrypt the connections. None: as the environment variable `SPARROW_TLS_AUTHORITIES` says."""


CONSUMER_DEFAULTS: ConsumerOptions = {
    "mode": "cluster",
    "consume_from": "first",
    "strategy": averagely,
    "prefetch": None,
    "at_most_once": False,
    "commit_interval_ms": 5_000,
    "offsets_path": None,
    "retries_max": None,
    "starvation_ms": STARVATION_MS,
    "trace": False,
    "timeout_ms": 3_000,
    "instance_name": None,
    "credentials": None,
    "tls": None,
}


class PopConsumerOptions(TypedDict, total=False):
    """Keyword arguments of `PopConsumer`."""

    invisible_ms: AtLeastOne
    """How long a received message is invisible to other consumers."""
    timeout_ms: AtLeastOne
    credentials: Credentials | None
    """Sign every request, for brokers that require tokens."""
    tls: Tls | None
    """Encrypt the connections. None: as the environment variable `SPARROW_TLS_AUTHORITIES` says."""


POP_CONSUMER_DEFAULTS: PopConsumerOptions = {
    "invisible_ms": 60_000,
    "timeout_ms": 3_000,
    "credentials": None,
    "tls": None,
}

OptionsT = TypeVar("OptionsT", bound=Mapping[str, Any])


def complete_options(client: str, given: OptionsT, defaults: OptionsT, kind: type[OptionsT]) -> OptionsT:
    """Return the options of `kind` with a default for each that is missing.

    Raise `TypeError` for an unknown name, and `SettingsError` for a value that cannot be used.
    """
    refuse_unknown(client, given, defaults, others=("name_servers", "group"))
    validate_options(client, given, kind)
    return cast(OptionsT, {**defaults, **given})
