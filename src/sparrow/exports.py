"""The public names that `sparrow` and `sparrow.aio` share, each with the module that defines it.

A name is imported when it is used first, so that `import sparrow` is light. Type checkers and editors read the imports
below, Python reads the table; a test compares the two.
"""

# ruff: noqa: PLC0414 -- "import X as X" tells type checkers that X is public here

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparrow.client.aio.admin.clusters import Cluster as Cluster
    from sparrow.client.aio.admin.groups import GroupMember as GroupMember
    from sparrow.client.aio.admin.groups import GroupProgress as GroupProgress
    from sparrow.client.aio.admin.groups import QueueProgress as QueueProgress
    from sparrow.client.aio.admin.resend import ResendResult as ResendResult
    from sparrow.client.aio.connection.session import ClientSession as ClientSession
    from sparrow.client.aio.consume.pop_consumer import PopReceipt as PopReceipt
    from sparrow.client.aio.consume.pull import PullResult as PullResult
    from sparrow.client.aio.consume.pull import PullStatus as PullStatus
    from sparrow.client.consume.allocation import AllocationStrategy as AllocationStrategy
    from sparrow.client.consume.allocation import averagely as averagely
    from sparrow.client.consume.allocation import averagely_by_circle as averagely_by_circle
    from sparrow.client.consume.allocation import by_config as by_config
    from sparrow.client.consume.allocation import by_machine_room as by_machine_room
    from sparrow.client.consume.allocation import consistent_hash as consistent_hash
    from sparrow.client.consume.allocation import machine_room_nearby as machine_room_nearby
    from sparrow.client.consume.pulled_batch import PulledBatch as PulledBatch
    from sparrow.client.consume.retry import DeadLetter as DeadLetter
    from sparrow.client.consume.retry import RetryLater as RetryLater
    from sparrow.client.options import ConsumeMode as ConsumeMode
    from sparrow.client.options import ConsumerOptions as ConsumerOptions
    from sparrow.client.options import PopConsumerOptions as PopConsumerOptions
    from sparrow.client.options import Prefetch as Prefetch
    from sparrow.client.options import ProducerOptions as ProducerOptions
    from sparrow.client.options import StartPosition as StartPosition
    from sparrow.client.options import TransactionChecker as TransactionChecker
    from sparrow.client.produce.queue_selection import QueueSelector as QueueSelector
    from sparrow.client.produce.queue_selection import by_hash as by_hash
    from sparrow.client.produce.queue_selection import by_sharding_key as by_sharding_key
    from sparrow.client.produce.queue_selection import in_machine_room as in_machine_room
    from sparrow.client.produce.queue_selection import random_choice as random_choice
    from sparrow.client.produce.queue_selection import round_robin as round_robin
    from sparrow.client.topic_route import TopicRoute as TopicRoute
    from sparrow.model.access.token import Credentials as Credentials
    from sparrow.model.access.token import TokenKind as TokenKind
    from sparrow.model.codec import Codec as Codec
    from sparrow.model.codec import JsonCodec as JsonCodec
    from sparrow.model.errors import *  # noqa: F403
    from sparrow.model.health import Finding as Finding
    from sparrow.model.health import Health as Health
    from sparrow.model.message import AnyMessage as AnyMessage
    from sparrow.model.message import Host as Host
    from sparrow.model.message import Message as Message
    from sparrow.model.message import StoredMessage as StoredMessage
    from sparrow.model.priority import Priority as Priority
    from sparrow.model.protocol import PROPERTY_SHARDING_KEY as PROPERTY_SHARDING_KEY
    from sparrow.model.queue import Queue as Queue
    from sparrow.model.queue import QueueBounds as QueueBounds
    from sparrow.model.queue import QueueRef as QueueRef
    from sparrow.model.send_result import BulkSendResult as BulkSendResult
    from sparrow.model.send_result import SendResult as SendResult
    from sparrow.model.send_result import SendStatus as SendStatus
    from sparrow.model.send_result import SentRange as SentRange
    from sparrow.model.tls import Tls as Tls
    from sparrow.model.topic import Group as Group
    from sparrow.model.topic import Topic as Topic
    from sparrow.model.transaction import TransactionState as TransactionState
    from sparrow.wire.bodies import ConsumeDirectlyResult as ConsumeDirectlyResult
    from sparrow.wire.bodies import TokenDescription as TokenDescription
    from sparrow.wire.error_codes import RemoteRefused as RemoteRefused
    from sparrow.wire.error_codes import RemoteUnavailable as RemoteUnavailable
else:
    from importlib import import_module

    SHARED_NAMES = {
        "sparrow.client.aio.admin.clusters": ("Cluster",),
        "sparrow.client.aio.admin.groups": ("GroupMember", "GroupProgress", "QueueProgress"),
        "sparrow.client.aio.admin.resend": ("ResendResult",),
        "sparrow.client.aio.connection.session": ("ClientSession",),
        "sparrow.client.aio.consume.pop_consumer": ("PopReceipt",),
        "sparrow.client.aio.consume.pull": ("PullResult", "PullStatus"),
        "sparrow.client.consume.allocation": (
            "AllocationStrategy",
            "averagely",
            "averagely_by_circle",
            "by_config",
            "by_machine_room",
            "consistent_hash",
            "machine_room_nearby",
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
        "sparrow.client.produce.queue_selection": (
            "QueueSelector",
            "by_hash",
            "by_sharding_key",
            "in_machine_room",
            "random_choice",
            "round_robin",
        ),
        "sparrow.client.consume.pulled_batch": ("PulledBatch",),
        "sparrow.client.consume.retry": ("DeadLetter", "RetryLater"),
        "sparrow.client.topic_route": ("TopicRoute",),
        "sparrow.model.codec": ("Codec", "JsonCodec"),
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
            "NoNameServer",
            "NoFollower",
            "NotEnoughReplicas",
            "NotLeader",
            "NotPermitted",
            "OffsetConflict",
            "PartialSend",
            "ProtocolError",
            "Refused",
            "ReplicationTimeout",
            "RequestTimeout",
            "SettingsError",
            "SparrowError",
            "StorageError",
            "StoreFailed",
            "StoreFull",
            "StoreInUse",
            "TooLarge",
            "TooManyMessages",
            "Unavailable",
            "UnknownGroup",
            "UnknownOffset",
            "UnknownTopic",
            "UnreadableBody",
            "WrongServer",
        ),
        "sparrow.model.health": ("Finding", "Health"),
        "sparrow.model.message": ("AnyMessage", "Host", "Message", "StoredMessage"),
        "sparrow.model.priority": ("Priority",),
        "sparrow.model.protocol": ("PROPERTY_SHARDING_KEY",),
        "sparrow.model.queue": ("Queue", "QueueBounds", "QueueRef"),
        "sparrow.model.send_result": ("BulkSendResult", "SendResult", "SendStatus", "SentRange"),
        "sparrow.model.tls": ("Tls",),
        "sparrow.model.access.token": ("Credentials", "TokenKind"),
        "sparrow.model.topic": ("Group", "Topic"),
        "sparrow.model.transaction": ("TransactionState",),
        "sparrow.wire.bodies": ("ConsumeDirectlyResult", "TokenDescription"),
        "sparrow.wire.error_codes": ("RemoteRefused", "RemoteUnavailable"),
    }

    def modules_of_names(clients):
        """Return the module of every public name; `clients` is the package of the client classes."""
        names = SHARED_NAMES | {clients: ("Admin", "Consumer", "HealthServer", "PopConsumer", "Producer")}
        return {name: module for module, exported in names.items() for name in exported}

    def import_name(name, modules, namespace):
        """Import a public name from its module and keep it in the namespace that exports it."""
        if name not in modules:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        namespace[name] = found = getattr(import_module(modules[name]), name)
        return found
