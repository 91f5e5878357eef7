"""Every error Sparrow raises on purpose, sorted by who must act.

An error carries values; its sentence is made from them and says what to do next.
"""

from __future__ import annotations


class SparrowError(Exception):
    """The root: whatever Sparrow raises on purpose."""


class ProtocolError(SparrowError):
    """The peer, or a file, broke the format. Close that connection; keep the broker."""


# -- understood, and no: the caller changes something --------------------------------------------


class Refused(SparrowError):
    """The request was understood and will not be done as it is."""


class BadRequest(Refused):
    """The frame was whole, but what it asks cannot be read. The connection stays."""

    def __init__(self, what: str, field: str, problem: str) -> None:
        super().__init__(what, field, problem)
        self.what, self.field, self.problem = what, field, problem

    def __str__(self) -> str:
        return f"{self.what} cannot be read: the field {self.field!r} {self.problem}"


class IllegalName(Refused):
    def __init__(self, kind: str, name: str, rule: str) -> None:
        super().__init__(kind, name, rule)
        self.kind, self.name, self.rule = kind, name, rule

    def __str__(self) -> str:
        return f"{self.name!r} is not a legal {self.kind} name: {self.rule}"


class UnknownTopic(Refused):
    def __init__(self, topic: str) -> None:
        super().__init__(topic)
        self.topic = topic

    def __str__(self) -> str:
        return f"topic {self.topic!r} does not exist: create it, or switch on automatic creation"


class TooLarge(Refused):
    def __init__(self, what: str, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(what, size_bytes, limit_bytes)
        self.what, self.size_bytes, self.limit_bytes = what, size_bytes, limit_bytes

    def __str__(self) -> str:
        return f"{self.what} has {self.size_bytes} bytes, {self.limit_bytes} are allowed: send less, or raise the limit"


class NotPermitted(Refused):
    def __init__(self, what: str, why: str) -> None:
        super().__init__(what, why)
        self.what, self.why = what, why

    def __str__(self) -> str:
        return f"{self.what} is not permitted: {self.why}"


class UnknownGroup(Refused):
    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.group = group

    def __str__(self) -> str:
        return f"group {self.group!r} does not exist: create it, or switch on automatic creation"


class GroupRequired(Refused):
    """What only a group can have was asked of a consumer without one: nobody keeps anything for it."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} needs a consumer group: give the consumer the name of one"


class IllegalMessage(Refused):
    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"the message is refused: {self.why}"


class UnknownOffset(Refused):
    def __init__(self, group: str, queue: object) -> None:
        super().__init__(group, queue)
        self.group, self.queue = group, queue

    def __str__(self) -> str:
        return f"group {self.group!r} has committed no offset on {self.queue}"


# -- not now, or not here: try again, perhaps elsewhere ------------------------------------------


class Unavailable(SparrowError):
    """Not now, or not here. Trying again, perhaps elsewhere, may work."""


class Busy(Unavailable):
    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why

    def __str__(self) -> str:
        return f"busy, try again: {self.why}"


class ConnectionLost(Unavailable):
    def __init__(self, address: str, why: str) -> None:
        super().__init__(address, why)
        self.address, self.why = address, why

    def __str__(self) -> str:
        return f"no connection to {self.address}: {self.why}"


class RequestTimeout(Unavailable):
    """No answer in time. What was asked may have been done all the same."""

    def __init__(self, address: str, what: str, timeout_ms: int) -> None:
        super().__init__(address, what, timeout_ms)
        self.address, self.what, self.timeout_ms = address, what, timeout_ms

    def __str__(self) -> str:
        return f"{self.address} did not answer {self.what} within {self.timeout_ms} ms"


class FlushTimeout(Unavailable):
    def __init__(self, timeout_ms: int) -> None:
        super().__init__(timeout_ms)
        self.timeout_ms = timeout_ms

    def __str__(self) -> str:
        return f"written, but not known to be on disk after {self.timeout_ms} ms"


class Closed(Unavailable):
    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.what = what

    def __str__(self) -> str:
        return f"{self.what} is closed"


# -- disk or database let us down: the operator --------------------------------------------------


class StorageError(SparrowError):
    """A disk or a database let us down; an operator must look."""


class StoreFull(StorageError):
    def __init__(self, path: object, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        return f"no room for new messages in {self.path} ({self.why}): free some space; reads go on meanwhile"


class StoreInUse(StorageError):
    def __init__(self, path: object, pid: str) -> None:
        super().__init__(path, pid)
        self.path, self.pid = path, pid

    def __str__(self) -> str:
        return f"{self.path} is open in another process (pid {self.pid or 'unknown'}): stop that one first"


class StoreFailed(StorageError):
    def __init__(self, path: object, why: str) -> None:
        super().__init__(path, why)
        self.path, self.why = path, why

    def __str__(self) -> str:
        return f"{self.path} stopped taking writes after a disk error ({self.why}): check the disk, then restart"


class CorruptRecord(StorageError):
    def __init__(self, physical_offset: int, why: str) -> None:
        super().__init__(physical_offset, why)
        self.physical_offset, self.why = physical_offset, why

    def __str__(self) -> str:
        return f"the record at physical offset {self.physical_offset} is damaged: {self.why}"


class DataLost(StorageError):
    def __init__(self, what: str, asked: int, first: int) -> None:
        super().__init__(what, asked, first)
        self.what, self.asked, self.first = what, asked, first

    def __str__(self) -> str:
        return f"{self.what}: offset {self.asked} was asked for, but retention kept only {self.first} and later"


# -- cannot start like this ----------------------------------------------------------------------


class SettingsError(SparrowError):
    """Cannot start like this."""

    def __init__(self, key: str, value: object, origin: str, suggestion: str) -> None:
        super().__init__(key, value, origin, suggestion)
        self.key, self.value, self.origin, self.suggestion = key, value, origin, suggestion

    def __str__(self) -> str:
        return f"{self.key} = {self.value!r} (from {self.origin}) cannot be used; {self.suggestion} would do"
