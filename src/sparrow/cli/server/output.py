"""The lines that servers print when they are ready, and their errors about ports."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from sparrow.databases.url import parse_database_url
from sparrow.model.errors import SettingsError, SparrowError


def print_name_server(address: str) -> None:
    """Print the address of the name server."""
    typer.echo(f"name server {address}")


def print_broker(name: str, address: str) -> None:
    """Print the name and the address of the broker."""
    typer.echo(f"broker {name} {address}")


def print_ready(data: Path, started_s: float, store: str | None = None) -> None:
    """Print that the server is ready, after how long, and where the messages are stored."""
    place = f"messages in {parse_database_url(store)}" if store is not None else f"data in {data.resolve()}"
    typer.echo(f"ready after {time.perf_counter() - started_s:.2f} s; {place}; Ctrl-C stops it")
    sys.stdout.flush()


@contextmanager
def port_flag(flag: str) -> Iterator[None]:
    """Name the flag that changes the port in the error of a server that cannot listen."""
    try:
        yield
    except SettingsError as error:
        if error.key != "address" or not isinstance(error.__cause__, OSError):
            raise
        reason = (error.__cause__.strerror or str(error.__cause__)).partition(" (while")[0]
        raise SparrowError(
            f"cannot listen on {error.value}: {reason[:1].lower()}{reason[1:]}. "
            f"Stop the other process, or choose another port with {flag}."
        ) from error
