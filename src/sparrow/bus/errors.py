"""Errors of the bus, and the exceptions with which a handler controls its message."""

from __future__ import annotations

from sparrow.model.errors import Refused, SettingsError, SparrowError, StorageError, Unavailable

_CREATE_TABLES = "apply the output of `sparrow bus ddl`, or use create_tables=True"


class NotInTransaction(Refused):
    """The given connection is in no transaction, or commits every statement by itself."""

    def __init__(self, handle: str, why: str, suggestion: str) -> None:
        super().__init__(handle, why, suggestion)
        self.handle, self.why, self.suggestion = handle, why, suggestion

    def __str__(self) -> str:
        return f"nothing was published: {self.handle} {self.why}; {self.suggestion}"


class NotSerializable(Refused):
    """A payload cannot be encoded as JSON."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, why)
        self.name, self.why = name, why

    def __str__(self) -> str:
        return f"the payload of {self.name!r} cannot be written as JSON: {self.why}"


class SubscriptionError(Refused):
    """A subscription cannot work; reported before anything starts."""


class IllegalTransition(Refused):
    """The state of a message does not allow the operation."""

    def __init__(self, message_id: int, status: str, wanted: str) -> None:
        super().__init__(message_id, status, wanted)
        self.message_id, self.status, self.wanted = message_id, status, wanted

    def __str__(self) -> str:
        return f"message {self.message_id} is {self.status}: it cannot become {self.wanted}"


class UnknownMessage(Refused):
    """There is no stored message with this id."""

    def __init__(self, table: str, message_id: int) -> None:
        super().__init__(table, message_id)
        self.table, self.message_id = table, message_id

    def __str__(self) -> str:
        return f"there is no message {self.message_id} in {self.table}: it was deleted, or never existed"


class BusDatabaseUnreachable(Unavailable):
    """The database of the bus cannot be reached."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(where, why)
        self.where, self.why = where, why

    def __str__(self) -> str:
        return f"the database {self.where} is unreachable: {self.why}"


class ClientMissing(SettingsError):
    """The driver of a database, or the client of a broker, is not installed."""

    def __init__(self, key: str, url: str, module: str, package: str) -> None:
        super().__init__(key, url, "the bus", f'pip install "{package}"')
        self.url, self.module, self.package = url, module, package

    def __str__(self) -> str:
        return f'the {self.key} {self.url} needs {self.module}, which is not installed: pip install "{self.package}"'


class TablesMissing(StorageError):
    """The tables of the bus do not exist, and it may not create them (`create_tables=False`), or not here."""

    def __init__(self, where: str, suggestion: str = _CREATE_TABLES) -> None:
        super().__init__(where, suggestion)
        self.where, self.suggestion = where, suggestion

    def __str__(self) -> str:
        return f"the tables of the bus are missing in {self.where}: {self.suggestion}"


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
    """No handler replied to a request in time."""

    def __init__(self, name: str, timeout_s: float) -> None:
        super().__init__(name, timeout_s)
        self.name, self.timeout_s = name, timeout_s

    def __str__(self) -> str:
        return (
            f"no reply to {self.name!r} within {self.timeout_s} s; the request may still be handled. Check that a "
            "subscriber of it runs, or allow more time with timeout=..."
        )


class LeaseLost(SparrowError):
    """Another worker has claimed the message: the work of this attempt is rolled back."""

    def __init__(self, message_id: int) -> None:
        super().__init__(message_id)
        self.message_id = message_id

    def __str__(self) -> str:
        return f"the lease of message {self.message_id} has passed to another worker: this attempt is rolled back"


class Undecodable(SparrowError):
    """A body that the handler's annotation does not accept. It is not retried."""


class NoSubscriber(SparrowError):
    """A message stored for a group that has no handler for its name."""

    def __init__(self, name: str, group: str) -> None:
        super().__init__(name, group)
        self.name, self.group = name, group

    def __str__(self) -> str:
        return f"group {self.group!r} has no handler for {self.name!r}"


# -- what a handler may raise ----------------------------------------------------------------------------------------


class RetryAfter(Exception):
    """Raised by a handler: try this message again after this many seconds. It counts as a failed attempt."""

    def __init__(self, seconds: float, reason: str = "") -> None:
        super().__init__(seconds, reason)
        self.seconds, self.reason = seconds, reason

    def __str__(self) -> str:
        return self.reason or f"the handler asked for another attempt in {self.seconds} s"


class Reject(Exception):
    """Raised by a handler: this message can never be handled. It is Failed at once."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason
