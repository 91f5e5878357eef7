"""Stores as the command line names them: a directory, or the URL of a database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import typer

from sparrow.cli.server.up import load_settings
from sparrow.settings import LogSettings, SqlSettings
from sparrow.store.log import LogStore
from sparrow.store.spi import Store
from sparrow.store.sql.drivers.url import DatabaseUrl, is_database_url, parse_database_url

_LARGEST_BYTES = (1 << 24) - 1
"""Whatever one store has taken, the other takes."""


def find_log_directory(directory: Path) -> Path:
    """The store in a directory: itself, or in what `sparrow up` was told as its data folder."""
    for found in (directory, directory / "store"):
        if (found / "commitlog").is_dir():
            return found
    raise typer.BadParameter(f"{directory} holds no commitlog folder, so it is no store")


def find_database(url: str) -> DatabaseUrl:
    """Of a SQLite file that is not there one would be made, and found to be sound."""
    address = parse_database_url(url)
    if address.dialect == "sqlite" and not Path(address.name).is_file():
        raise typer.BadParameter(f"there is no file {address.name}")
    return address


@asynccontextmanager
async def open_store(name: str, *, is_new: bool = False) -> AsyncIterator[Store]:
    """A store, for as long as it is needed. `is_new`: it may be made."""
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
        return directory / "store"  # where `sparrow up --data` looks


def store_identity(name: str) -> str:
    """Tells one store from another, however it is spelled: without passwords."""
    if not is_database_url(name):
        return str(find_log_directory(Path(name)).resolve())
    address = parse_database_url(name)
    return str(Path(address.name).resolve()) if address.dialect == "sqlite" else str(address)
