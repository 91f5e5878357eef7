"""What can go wrong with a statement, the same for every database."""

from __future__ import annotations

from sparrow.model.errors import SettingsError, StorageError, Unavailable


class LockConflict(Exception):
    """A deadlock, or a lock wait that timed out: nothing was done; repeat the whole transaction."""


class DuplicateKey(Exception):
    """A row with this unique key exists: nothing was done."""


class MissingPartition(Exception):
    """The id lies beyond the last partition of the table: nothing was done; add partitions."""


class StoreDatabaseUnreachable(Unavailable):
    """The connection to the database failed. The statement that was running may have been executed."""

    def __init__(self, database: str, why: str) -> None:
        super().__init__(database, why)
        self.database, self.why = database, why

    def __str__(self) -> str:
        return (
            f"cannot reach the database {self.database}: {self.why}. "
            "Check that its server runs and that the store URL is right."
        )


class DatabaseRefused(StorageError):
    """The database rejected a statement."""

    def __init__(self, database: str, why: str) -> None:
        super().__init__(database, why)
        self.database, self.why = database, why

    def __str__(self) -> str:
        return f"the database {self.database} rejected a statement: {self.why}"


class MissingDriver(SettingsError):
    """The Python package of a database's driver is not installed."""

    def __init__(self, database: str, package: str | None, extra: str) -> None:
        super().__init__("store", database, f"package {package}", f"pip install 'sparrowmq[{extra}]'")
        self.package, self.extra = package, extra

    def __str__(self) -> str:
        return f"the database {self.value} needs the Python package {self.package!r}. Install it: {self.suggestion}"
