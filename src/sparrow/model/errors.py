"""Every error that Sparrow raises on purpose, grouped by who has to act.

An error holds values. Its text is made from them, and says what happened and what to do.
"""

from __future__ import annotations

import re

_PASSWORD_IN_URL = re.compile(r"((?:[\w+.-]+://)?+[^:/@]*):.*@")


def hide_password(url: str) -> str:
    """Return a URL without its password, for errors and logs."""
    return _PASSWORD_IN_URL.sub(r"\1:***@", url, count=1)


class SparrowError(Exception):
    """The base class of every error that Sparrow raises on purpose."""


class ProtocolError(SparrowError):
    """A peer or a file violates the format. Only that connection is closed."""


class UnreadableBody(SparrowError):
    """The body of a message is not what its reader expects. The cause says what is wrong."""

    def __init__(self, topic: str, message_id: str | None, body: bytes, codec: object, why: object) -> None:
        super().__init__(topic, message_id, body, codec, why)
        self.topic, self.message_id, self.body, self.codec, self.why = topic, message_id, body, codec, why

    def __str__(self) -> str:
        name = type(self.codec).__name__
        form = "the expected JSON" if name == "JsonCodec" else f"what {name} reads"
        which = f"message {self.message_id}" if self.message_id else "a message"
        begins = f"it begins with {bytes(self.body[:40])!r}" if self.body else "it is empty"
        return (
            f"the body of {which} of topic {self.topic!r} is not {form} ({self.why}); {begins}: read "
            "message.body, or decode it as its sender encoded it"
        )


# -- refused: the caller has to change something ----------------------------------------------------------------------


class Refused(SparrowError):
    """The request is understood, and is not carried out as it is."""


class BadRequest(Refused):
    """The frame is complete, but a field of the request is not valid. The connection stays open."""

    def __init__(self, what: str, field: str, problem: str) -> None:
        super().__init__(what, field, problem)
        self.what, self.field, self.problem = what, field, problem

    def __str__(self) -> str:
        return f"{self.what} cannot be read: the field {self.field!r} {self.problem}"


class IllegalName(Refused):
    """A name of a topic, a group or a token has characters or a length that are not allowed."""

    def __init__(self, kind: str, name: str, rule: str) -> None:
        super().__init__(kind, name, rule)
        self.kind, self.name, self.rule = kind, name, rule

    def __str__(self) -> str:
        return f"{self.name!r} is not a legal {self.kind} name: {self.rule}"


class UnknownTopic(Refused):
    """The topic does not exist."""

    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return f"topic {self.topic!r} does not exist: create it, or enable automatic creation on the brokers"


class TooLarge(Refused):
    """A message, a batch or a property string exceeds a limit."""

    def __init__(self, what: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(what, size_bytes, limit_bytes)
        self.what, self.size_bytes, self.limit_bytes = what, size_bytes, limit_bytes

    def __str__(self) -> str:
        return (
            f"{self.what} has {self.size_bytes} bytes, the limit is {self.limit_bytes}: send less, or raise the limit"
        )


class NotPermitted(Refused):
    """The topic, the group or the token does not permit the request."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what, self.why = what, why

    def __str__(self) -> str:
        return f"{self.what} is not permitted: {self.why}"


class UnknownGroup(Refused):
    """The consumer group does not exist."""

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.group = group

    def __str__(self) -> str:
        return f"group {self.group!r} does not exist: create it, or enable automatic creation on the brokers"


class GroupRequired(Refused):
    """A consumer without a group was asked for something that only a group has."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} needs a consumer group: create the consumer with group=..."


class WrongServer(Refused):
    """A broker listens where a name server is meant, or the other way round."""

    def __init__(self, address: str, is_broker: bool) -> None:
        super().__init__(address, is_broker)
        self.address, self.is_broker = address, is_broker

    def __str__(self) -> str:
        if self.is_broker:
            return (
                f"{self.address} is the address of a broker, not of a name server: use the port of a name server, "
                "usually 9876"
            )
        return (
            f"{self.address} is the address of a name server, not of a broker: use the port of a broker, usually 10911"
        )


class IllegalMessage(Refused):
    """The message has properties that contradict each other or the topic."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"the message is refused: {self.why}"


class UnknownOffset(Refused):
    """The group has not committed an offset for the queue."""

    def __init__(self, group: str, queue: object) -> None:
        super().__init__(group, queue)
        self.group, self.queue = group, queue

    def __str__(self) -> str:
        return f"group {self.group!r} has committed no offset on {self.queue}"


# -- unavailable: the caller may try again, perhaps at another broker -------------------------------------------------


class Unavailable(SparrowError):
    """The request cannot be served now, or not by this broker. Another attempt may succeed."""


class Busy(Unavailable):
    """A limit of concurrent work is reached. Try again later."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"busy, try again: {self.why}"


class ConnectionLost(Unavailable):
    """A connection could not be opened, or was closed before the response."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__(address, why)
        self.address, self.why = address, why

    def __str__(self) -> str:
        return f"no connection to {self.address}: {self.why}"


class RequestTimeout(Unavailable):
    """No response arrived in time. The request may still have been carried out."""

    def __init__(
        self,
        address: str,
        what: str,
        timeout_ms: int,
        remedy: str = "check that a name server or broker listens there and is not overloaded, or allow more time",
    ) -> None:
        super().__init__(address, what, timeout_ms, remedy)
        self.address, self.what, self.timeout_ms, self.remedy = address, what, timeout_ms, remedy

    def __str__(self) -> str:
        return f"{self.address} did not respond to {self.what} within {self.timeout_ms} ms; {self.remedy}"


class NoMaster(Unavailable):
    """The topic has queues, but no master broker that accepts messages for them."""


class PartialSend(SparrowError):
    """A table was sent only in part; the cause says why."""

    def __init__(self, topic: str, acknowledged: int, total: int) -> None:
        super().__init__(topic, acknowledged, total)
        self.topic, self.acknowledged, self.total = topic, acknowledged, total

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} of {self.total} rows were acknowledged by topic {self.topic!r} before a batch failed"
            + (f": {self.__cause__}" if self.__cause__ is not None else "")
        )


class FlushTimeout(Unavailable):
    """The message is written, and not known to be on disk in time."""

    def __init__(self, timeout_ms: int) -> None:
        super().__init__(timeout_ms)
        self.timeout_ms = timeout_ms

    def __str__(self) -> str:
        return f"the message is written, but not flushed to disk within {self.timeout_ms} ms"


class Closed(Unavailable):
    """The client or the server is closed."""

    def __init__(self, what: str, remedy: str = "") -> None:
        super().__init__(what, remedy)
        self.what, self.remedy = what, remedy

    def __str__(self) -> str:
        return f"{self.what} is closed: {self.remedy}" if self.remedy else f"{self.what} is closed"


# -- storage: the operator has to act ---------------------------------------------------------------------------------


class StorageError(SparrowError):
    """A disk or a database failed; an operator has to act."""


class StoreFull(StorageError):
    """The disk has too little space for new messages."""

    def __init__(self, path: object, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        return f"no space for new messages in {self.path} ({self.why}): free some space. Reads continue."


class StoreInUse(StorageError):
    """Another process has opened the store."""

    def __init__(self, path: object, pid: str) -> None:
        super().__init__(path, pid)
        self.path, self.pid = path, pid

    def __str__(self) -> str:
        return f"{self.path} is open in another process (pid {self.pid or 'unknown'}): stop that process first"


class StoreFailed(StorageError):
    """The store stopped writing after a disk error."""

    def __init__(self, path: object, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        return f"{self.path} stopped writing after a disk error ({self.why}): check the disk, then restart"


class CorruptRecord(StorageError):
    """A stored record is damaged."""

    def __init__(self, physical_offset: int, why: str) -> None:
        super().__init__(physical_offset, why)
        self.physical_offset, self.why = physical_offset, why

    def __str__(self) -> str:
        return f"the record at physical offset {self.physical_offset} is damaged: {self.why}"


class DataLost(StorageError):
    """Retention has removed messages that were still to be read."""

    def __init__(self, what: str, asked: int, first: int) -> None:
        super().__init__(what, asked, first)
        self.what, self.asked, self.first = what, asked, first

    def __str__(self) -> str:
        return (
            f"{self.what}: offset {self.asked} was requested, but retention has removed everything before {self.first}"
        )


# -- settings: the operator or the programmer has to change a value ---------------------------------------------------


class SettingsError(SparrowError):
    """A setting or an argument has a value that cannot be used."""

    def __init__(self, key: str, value: object, origin: str, suggestion: str, reason: str = "") -> None:
        """Keep what is wrong. The password in a URL is hidden; `reason` says why the value cannot be used."""
        if isinstance(value, str):
            value = hide_password(value)
        super().__init__(key, value, origin, suggestion, reason)
        self.key, self.value, self.origin, self.suggestion, self.reason = key, value, origin, suggestion, reason

    def __str__(self) -> str:
        use = self.suggestion.rstrip(",")
        if self.reason:
            return f"{self.key} = {self.value!r} cannot be used: {self.reason}. Write {use}."
        return f"{self.key} = {self.value!r} (from {self.origin}) cannot be used: use {use}"


class MissingExtra(SparrowError, ImportError):
    """An optional package is not installed."""

    def __init__(self, module: str, extra: str, for_: str) -> None:
        super().__init__(module, extra, for_)
        self.module, self.extra, self.for_ = module, extra, for_

    def __str__(self) -> str:
        return f'{self.for_} needs {self.module}: pip install "sparrowmq[{self.extra}]"'


class CannotListen(SettingsError):
    """A server cannot listen on its address, mostly because another process does."""

    def __init__(self, address: str, why: str) -> None:
        super().__init__("address", address, "the settings", "another port")
        self.address, self.why = address, why

    def __str__(self) -> str:
        why = self.why[:1].lower() + self.why[1:]
        return f"cannot listen on {self.address}: {why}. Stop the other process, or choose another port."
