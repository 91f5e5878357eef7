"""The store that a command works on: a directory, or the URL of a database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import typer

from sparrow.cli.settings import load_settings
from sparrow.databases.url import DatabaseUrl, is_database_url, parse_database_url
from sparrow.settings import LogSettings, SqlSettings
from sparrow.store.log import LogStore
from sparrow.store.spi import Store

_LARGEST_BYTES = (1 << 24) - 1
"""The largest body of any store, so that a copy accepts every message."""


def find_log_directory(directory: Path) -> Path:
    """Return the store directory: the given one, or `store` in the data folder of `sparrow up`."""
    for found in (directory, directory / "store"):
        if (found / "commitlog").is_dir():
            return found
    raise typer.BadParameter(f"{directory} is not a store: it has no commitlog folder")


def find_database(url: str) -> DatabaseUrl:
    """Parse the URL. A missing SQLite file is an error, because opening would create an empty one."""
    address = parse_database_url(url)
    if address.dialect == "sqlite" and not Path(address.name).is_file():
        raise typer.BadParameter(f"the file {address.name} does not exist")
    return address


@asynccontextmanager
async def open_store(name: str, *, is_new: bool = False) -> AsyncIterator[Store]:
    """Open a store. With `is_new` it is created if it is missing."""
    settings = load_settings()
    if is_database_url(name):
        from sparrow.store.sql.engine import SqlStore

        if not is_new:
            find_database(name)
        for_all: SqlSettings = settings.sql.model_copy(update={"message_bytes_max": _LARGEST_BYTES})
        async with await SqlStore.open(name, for_all) as database:
            yield database
        return
    directory = _new_log(Path(name)) if is_new else find_log_directory(Path(name))
    larger: LogSettings = settings.log.model_copy(update={"message_bytes_max": _LARGEST_BYTES})
    async with await asyncio.to_thread(LogStore, directory, larger) as log:
        yield log


def _new_log(directory: Path) -> Path:
    try:
        return find_log_directory(directory)
    except typer.BadParameter:
        return directory / "store"  # as `sparrow up --data` does


def store_identity(name: str) -> str:
    """Return a name that identifies the store, however it was given, without passwords."""
    if not is_database_url(name):
        return str(find_log_directory(Path(name)).resolve())
    address = parse_database_url(name)
    return str(Path(address.name).resolve()) if address.dialect == "sqlite" else str(address)
