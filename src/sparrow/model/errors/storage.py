"""Failures of a disk or a database: the operator has to act."""

from __future__ import annotations

from sparrow.model.errors.base import LimitName, SparrowError


class StorageError(SparrowError):
    """A disk or a database failed; an operator has to act."""


class StoreFull(StorageError):
    """The disk has too little space for new messages."""

    limit_name: LimitName | None = "disk"

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
        return f"{self.what}: offset {self.asked} is requested, but retention has removed all before {self.first}"
