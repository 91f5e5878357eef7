"""What can go wrong with the bus, and what a handler may raise to steer one message."""

from __future__ import annotations

from sparrow.model.errors import Refused, SparrowError, StorageError, Unavailable


class NotInTransaction(Refused):
    """An event belongs to a transaction, and the handle that was given is in none."""

    def __init__(self, handle: str, why: str, suggestion: str) -> None:
        super().__init__(handle, why, suggestion)
        self.handle, self.why, self.suggestion = handle, why, suggestion

    def __str__(self) -> str:
        return f"nothing was published: {self.handle} {self.why}; {self.suggestion}"


class NotSerializable(Refused):
    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name, self.why = name, why

    def __str__(self) -> str:
        return f"the payload of {self.name!r} cannot be written as JSON: {self.why}"


class SubscriptionError(Refused):
    """Handlers are declared in a way that cannot work; said before anything starts."""


class IllegalTransition(Refused):
    def __init__(self, message_id: int, status: str, wanted: str) -> None:
        super().__init__(message_id, status, wanted)
        self.message_id, self.status, self.wanted = message_id, status, wanted

    def __str__(self) -> str:
        return f"message {self.message_id} is {self.status}: it cannot become {self.wanted}"


class UnknownMessage(Refused):
    def __init__(self, table: str, message_id: int) -> None:
        super().__init__(table, message_id)
        self.table, self.message_id = table, message_id

    def __str__(self) -> str:
        return f"there is no message {self.message_id} in {self.table}: it was cleaned up, or never was there"


class BusDatabaseUnreachable(Unavailable):
    def __init__(self, where: str, why: str) -> None:
        super().__init__(where, why)
        self.where, self.why = where, why

    def __str__(self) -> str:
        return f"the database {self.where} cannot be used: {self.why}"


class TablesMissing(StorageError):
    def __init__(self, where: str) -> None:
        super().__init__(where)
        self.where = where

    def __str__(self) -> str:
        return f"the bus has no tables in {self.where}: run `sparrow bus ddl` and apply it, or use create_tables=True"


class SchemaTooOld(StorageError):
    """The tables need a migration, and the bus may not make it (`create_tables=False`)."""

    def __init__(self, where: str, found: int, needed: int) -> None:
        super().__init__(where, found, needed)
        self.where, self.found, self.needed = where, found, needed

    def __str__(self) -> str:
        return (
            f"the bus tables in {self.where} have schema version {self.found}, and version {self.needed} is needed: "
            "start once with create_tables=True, or run your framework's migrations"
        )


class SchemaTooNew(StorageError):
    """A newer version of Sparrow has migrated the tables."""

    def __init__(self, where: str, found: int, known: int) -> None:
        super().__init__(where, found, known)
        self.where, self.found, self.known = where, found, known

    def __str__(self) -> str:
        return (
            f"the bus tables in {self.where} have schema version {self.found}, and this version of Sparrow knows "
            f"versions up to {self.known}: upgrade Sparrow in this process"
        )


class NoReply(Unavailable):
    def __init__(self, name: str, timeout_s: float) -> None:
        super().__init__(name, timeout_s)
        self.name, self.timeout_s = name, timeout_s

    def __str__(self) -> str:
        return f"nobody answered {self.name!r} within {self.timeout_s} s; it may still be handled"


class LeaseLost(SparrowError):
    """Another worker has taken this message over: whatever was done for it is rolled back."""

    def __init__(self, message_id: int) -> None:
        super().__init__(message_id)
        self.message_id = message_id

    def __str__(self) -> str:
        return f"the lease of message {self.message_id} has passed to another worker: nothing of this attempt counts"


class Undecodable(SparrowError):
    """A body that is not what the handler asks for. Trying again would not help."""


class NoSubscriber(SparrowError):
    """A message stored for a group that has no handler for its name."""

    def __init__(self, name: str, group: str) -> None:
        super().__init__(name, group)
        self.name, self.group = name, group

    def __str__(self) -> str:
        return f"no handler of group {self.group!r} takes {self.name!r}"


# -- what a handler may raise ----------------------------------------------------------------------------------------


class RetryAfter(Exception):
    """Try this message again so many seconds from now. It counts as a failed attempt."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        super().__init__(seconds, reason)
        self.seconds, self.reason = seconds, reason

    def __str__(self) -> str:
        return self.reason or f"the handler asked for another attempt in {self.seconds} s"


class Reject(Exception):
    """This message can never be handled: Failed at once, without further attempts."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason
