"""The admin client of a command, with its options and its errors."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from sparrow.client.blocking.admin import Admin
from sparrow.client.options import NAME_SERVERS_VARIABLE
from sparrow.model.errors import ConnectionLost, RequestTimeout, Unavailable
from sparrow.model.token import Credentials

NameServersOption = Annotated[
    str,
    typer.Option(
        "--name-servers", "-n", help="Name servers: host:port, separated by ';'.", envvar=NAME_SERVERS_VARIABLE
    ),
]
AccessKeyOption = Annotated[
    str | None, typer.Option(help="Admin token, if the brokers require one.", envvar="SPARROW_ACCESS_KEY")
]
SecretKeyOption = Annotated[
    str | None, typer.Option(help="Its secret key; prefer the environment variable.", envvar="SPARROW_SECRET_KEY")
]


@contextmanager
def open_admin(name_servers: str, access_key: str | None = None, secret_key: str | None = None) -> Iterator[Admin]:
    """Open an admin client. `Unavailable` says what to do if no name server answers."""
    credentials = None
    if access_key is not None or secret_key is not None:
        credentials = Credentials(access_key or "", secret_key or "")
    try:
        with _silent_health_log(), Admin(name_servers, credentials=credentials) as admin:
            yield admin
    except (ConnectionLost, RequestTimeout) as error:
        if error.address not in name_servers.split(";"):
            raise
        raise Unavailable(
            f"cannot reach the name server: {error}. Start one with `sparrow up`, or give its address with "
            "--name-servers."
        ) from error


@contextmanager
def _silent_health_log() -> Iterator[None]:
    """Log no findings meanwhile: the error of the command says the same."""
    log = logging.getLogger("sparrow.client.health")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
