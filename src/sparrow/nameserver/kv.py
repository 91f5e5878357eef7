"""The KV configuration of a name server: namespaces of keys and texts, optionally kept in a file.

1. When `put` or `delete` returns, the change is in the file: the whole file is replaced before readers see the change.
2. The tables have a size limit, because any client may add to them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from sparrow.model.errors import StorageError, TooLarge
from sparrow.model.errors.base import by_limit

KV_BYTES_MAX = 8 << 20
"""Size of all tables together, as JSON."""

KvTables = dict[str, dict[str, str]]

_read = msgspec.json.Decoder(KvTables).decode


class KvConfig:
    """Texts by namespace and key."""

    def __init__(self, path: Path | None = None) -> None:
        """Load the file at `path`, if there is one. An unreadable file raises `StorageError` and is not overwritten."""
        self._path = path
        self._tables = _load(path) if path is not None else {}
        self._writing = asyncio.Lock()

    def get(self, namespace: str, key: str) -> str | None:
        table = self._tables.get(namespace)
        return table.get(key) if table is not None else None

    def table(self, namespace: str) -> Mapping[str, str] | None:
        return self._tables.get(namespace)

    async def put(self, namespace: str, key: str, value: str) -> None:
        async with self._writing:
            if self.get(namespace, key) != value:
                await self._replace_tables({**self._tables, namespace: {**self._tables.get(namespace, {}), key: value}})

    async def delete(self, namespace: str, key: str) -> None:
        """Delete a key. A missing key is not an error, because tools repeat their requests."""
        async with self._writing:
            if self.get(namespace, key) is None:
                return
            remaining = {name: text for name, text in self._tables[namespace].items() if name != key}
            others = {name: table for name, table in self._tables.items() if name != namespace}
            await self._replace_tables({**others, namespace: remaining} if remaining else others)

    async def _replace_tables(self, tables: KvTables) -> None:
        data = msgspec.json.encode(tables)
        if len(data) > KV_BYTES_MAX:
            raise by_limit("kv_bytes", TooLarge("the KV configuration", len(data), KV_BYTES_MAX))
        if self._path is not None:
            try:
                await asyncio.to_thread(_replace_file, self._path, data)
            except OSError as cause:
                raise StorageError(f"cannot write {self._path}: {cause.strerror or cause}") from cause
        self._tables = tables


def _load(path: Path) -> KvTables:
    try:
        return _read(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as cause:
        raise StorageError(f"cannot read {path}: {cause.strerror or cause}") from cause
    except ValueError as cause:
        raise StorageError(f"{path} is not a KV configuration ({cause}): repair the file, or move it away") from cause


def _replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically: after a crash there is the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    with open(fresh, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # makes the new directory entry durable
    finally:
        os.close(folder)
