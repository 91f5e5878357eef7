"""Sparrow: a message platform that is compatible with RocketMQ, with SQL stores, an event bus and Spark.

The public names of the client are here: `from sparrow import Message, Producer, Consumer, Admin`. These classes block;
`sparrow.aio` has the same names for asyncio. Each name is imported when it is used first, so `import sparrow` is light.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparrow import aio
    from sparrow.client.aio.admin.clusters import Cluster
    from sparrow.client.aio.admin.groups import GroupMember, GroupProgress, QueueProgress
    from sparrow.client.aio.admin.resend import ResendResult
    from sparrow.client.aio.connection.session import ClientSession
    from sparrow.client.aio.consume.pop_consumer import PopReceipt
    from sparrow.client.aio.consume.pull import PullResult, PullStatus
    from sparrow.client.allocation import (
        AllocationStrategy,
        averagely,
        averagely_by_circle,
        by_config,
        by_machine_room,
        consistent_hash,
    )
    from sparrow.client.blocking import Admin, Consumer, PopConsumer, Producer
    from sparrow.client.options import (
        ConsumeMode,
        ConsumerOptions,
        PopConsumerOptions,
        Prefetch,
        ProducerOptions,
        StartPosition,
        TransactionChecker,
    )
    from sparrow.client.queue_selection import QueueSelector, by_hash, by_sharding_key, random_choice, round_robin
    from sparrow.client.retry import DeadLetter, RetryLater
    from sparrow.client.topic_route import TopicRoute
    from sparrow.model import errors
    from sparrow.model.errors import (
        BadRequest,
        Busy,
        CannotListen,
        Closed,
        ConnectionLost,
        CorruptRecord,
        DataLost,
        FlushTimeout,
        GroupRequired,
        IllegalMessage,
        IllegalName,
        MissingExtra,
        NoMaster,
        NotPermitted,
        PartialSend,
        ProtocolError,
        Refused,
        RequestTimeout,
        SettingsError,
        SparrowError,
        StorageError,
        StoreFailed,
        StoreFull,
        StoreInUse,
        TooLarge,
        Unavailable,
        UnknownGroup,
        UnknownOffset,
        UnknownTopic,
    )
    from sparrow.model.message import AnyMessage, Host, Message, StoredMessage
    from sparrow.model.priority import Priority
    from sparrow.model.protocol import PROPERTY_SHARDING_KEY
    from sparrow.model.queue import Queue, QueueBounds, QueueRef
    from sparrow.model.send_result import SendResult, SendStatus
    from sparrow.model.token import Credentials, TokenKind
    from sparrow.model.topic import Group, Topic
    from sparrow.model.transaction import TransactionState
    from sparrow.wire.bodies import ConsumeDirectlyResult, TokenDescription
    from sparrow.wire.error_codes import RemoteRefused, RemoteUnavailable

__version__ = "0.2.0"

__all__ = [
    "PROPERTY_SHARDING_KEY",
    "Admin",
    "AllocationStrategy",
    "AnyMessage",
    "BadRequest",
    "Busy",
    "CannotListen",
    "ClientSession",
    "Closed",
    "Cluster",
    "ConnectionLost",
    "ConsumeDirectlyResult",
    "ConsumeMode",
    "Consumer",
    "ConsumerOptions",
    "CorruptRecord",
    "Credentials",
    "DataLost",
    "DeadLetter",
    "FlushTimeout",
    "Group",
    "GroupMember",
    "GroupProgress",
    "GroupRequired",
    "Host",
    "IllegalMessage",
    "IllegalName",
    "Message",
    "MissingExtra",
    "NoMaster",
    "NotPermitted",
    "PartialSend",
    "PopConsumer",
    "PopConsumerOptions",
    "PopReceipt",
    "Prefetch",
    "Priority",
    "Producer",
    "ProducerOptions",
    "ProtocolError",
    "PullResult",
    "PullStatus",
    "Queue",
    "QueueBounds",
    "QueueProgress",
    "QueueRef",
    "QueueSelector",
    "Refused",
    "RemoteRefused",
    "RemoteUnavailable",
    "RequestTimeout",
    "ResendResult",
    "RetryLater",
    "SendResult",
    "SendStatus",
    "SettingsError",
    "SparrowError",
    "StartPosition",
    "StorageError",
    "StoreFailed",
    "StoreFull",
    "StoreInUse",
    "StoredMessage",
    "TokenDescription",
    "TokenKind",
    "TooLarge",
    "Topic",
    "TopicRoute",
    "TransactionChecker",
    "TransactionState",
    "Unavailable",
    "UnknownGroup",
    "UnknownOffset",
    "UnknownTopic",
    "__version__",
    "aio",
    "averagely",
    "averagely_by_circle",
    "by_config",
    "by_hash",
    "by_machine_room",
    "by_sharding_key",
    "consistent_hash",
    "errors",
    "random_choice",
    "round_robin",
]

_MODULES = {
    "sparrow.client.aio.admin.clusters": ("Cluster",),
    "sparrow.client.aio.admin.groups": (
        "GroupMember",
        "GroupProgress",
        "QueueProgress",
    ),
    "sparrow.client.aio.admin.resend": ("ResendResult",),
    "sparrow.client.aio.connection.session": ("ClientSession",),
    "sparrow.client.aio.consume.pop_consumer": ("PopReceipt",),
    "sparrow.client.aio.consume.pull": (
        "PullResult",
        "PullStatus",
    ),
    "sparrow.client.allocation": (
        "AllocationStrategy",
        "averagely",
        "averagely_by_circle",
        "by_config",
        "by_machine_room",
        "consistent_hash",
    ),
    "sparrow.client.blocking": (
        "Admin",
        "Consumer",
        "PopConsumer",
        "Producer",
    ),
    "sparrow.client.options": (
        "ConsumeMode",
        "ConsumerOptions",
        "PopConsumerOptions",
        "Prefetch",
        "ProducerOptions",
        "StartPosition",
        "TransactionChecker",
    ),
    "sparrow.client.queue_selection": (
        "QueueSelector",
        "by_hash",
        "by_sharding_key",
        "random_choice",
        "round_robin",
    ),
    "sparrow.client.retry": (
        "DeadLetter",
        "RetryLater",
    ),
    "sparrow.client.topic_route": ("TopicRoute",),
    "sparrow.model.errors": (
        "BadRequest",
        "Busy",
        "CannotListen",
        "Closed",
        "ConnectionLost",
        "CorruptRecord",
        "DataLost",
        "FlushTimeout",
        "GroupRequired",
        "IllegalMessage",
        "IllegalName",
        "MissingExtra",
        "NoMaster",
        "NotPermitted",
        "PartialSend",
        "ProtocolError",
        "Refused",
        "RequestTimeout",
        "SettingsError",
        "SparrowError",
        "StorageError",
        "StoreFailed",
        "StoreFull",
        "StoreInUse",
        "TooLarge",
        "Unavailable",
        "UnknownGroup",
        "UnknownOffset",
        "UnknownTopic",
    ),
    "sparrow.model.message": (
        "AnyMessage",
        "Host",
        "Message",
        "StoredMessage",
    ),
    "sparrow.model.priority": ("Priority",),
    "sparrow.model.protocol": ("PROPERTY_SHARDING_KEY",),
    "sparrow.model.queue": (
        "Queue",
        "QueueBounds",
        "QueueRef",
    ),
    "sparrow.model.send_result": (
        "SendResult",
        "SendStatus",
    ),
    "sparrow.model.token": (
        "Credentials",
        "TokenKind",
    ),
    "sparrow.model.topic": (
        "Group",
        "Topic",
    ),
    "sparrow.model.transaction": ("TransactionState",),
    "sparrow.wire.bodies": (
        "ConsumeDirectlyResult",
        "TokenDescription",
    ),
    "sparrow.wire.error_codes": (
        "RemoteRefused",
        "RemoteUnavailable",
    ),
}
_SUBMODULES = {"aio": "sparrow.aio", "errors": "sparrow.model.errors"}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name when it is used first."""
    if name in _SUBMODULES:
        return import_module(_SUBMODULES[name])
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
