"""Names and texts that tools leave with the name server, in namespaces. Kept in a file if one is given.

1. What `put` or `delete` has returned from is in the file: it is replaced whole before the change can be seen.
2. The tables have a bound, because any peer may add to them.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from sparrow.model.errors import StorageError, TooLarge

KV_BYTES_MAX = 8 << 20
"""Of all tables together, as they are written to the file."""

KvTables = dict[str, dict[str, str]]

_read = msgspec.json.Decoder(KvTables).decode


class KvConfig:
    """Namespace to name to text."""

    def __init__(self, path: Path | None = None) -> None:
        """With a path, what the file holds is taken over; a file that cannot be read is an error, never overwritten."""
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
                await self._become({**self._tables, namespace: {**self._tables.get(namespace, {}), key: value}})

    async def delete(self, namespace: str, key: str) -> None:
        """What is not there is no error: tools repeat themselves."""
        async with self._writing:
            if self.get(namespace, key) is None:
                return
            left = {name: text for name, text in self._tables[namespace].items() if name != key}
            others = {name: table for name, table in self._tables.items() if name != namespace}
            await self._become({**others, namespace: left} if left else others)

    async def _become(self, tables: KvTables) -> None:
        data = msgspec.json.encode(tables)
        if len(data) > KV_BYTES_MAX:
            raise TooLarge("the KV configuration", len(data), KV_BYTES_MAX)
        if self._path is not None:
            try:
                await asyncio.to_thread(_replace, self._path, data)
            except OSError as cause:
                raise StorageError(f"{self._path} cannot be written: {cause.strerror or cause}") from cause
        self._tables = tables


def _load(path: Path) -> KvTables:
    try:
        return _read(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as cause:
        raise StorageError(f"{path} cannot be read: {cause.strerror or cause}") from cause
    except ValueError as cause:
        raise StorageError(f"{path} holds no KV configuration ({cause}): repair it, or move it away") from cause


def _replace(path: Path, data: bytes) -> None:
    """A crash leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    with open(fresh, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # or the new name may be lost with the power
    finally:
        os.close(folder)
