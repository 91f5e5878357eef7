"""The admin client of a command: its options, and the event loop it runs on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, TypeVar

import typer

from sparrow.client.aio.admin.admin import Admin as AsyncAdmin
from sparrow.client.blocking.admin import Admin
from sparrow.client.blocking.loop_thread import new_event_loop
from sparrow.client.options import DEFAULT_NAME_SERVERS, NAME_SERVERS_VARIABLE
from sparrow.model.access.token import Credentials

T = TypeVar("T")

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


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """The options of every command that connects to a platform."""

    name_servers: NameServersOption = DEFAULT_NAME_SERVERS
    access_key: AccessKeyOption = None
    secret_key: SecretKeyOption = None

    @property
    def credentials(self) -> Credentials | None:
        """What signs the requests; None without a token."""
        return make_credentials(self.access_key, self.secret_key)

    def run(self, work: Callable[[AsyncAdmin], Awaitable[T]]) -> T:
        """Run a coroutine with an open admin client, and return its result. Ctrl-C cancels it."""

        async def run() -> T:
            async with AsyncAdmin(self.name_servers, credentials=self.credentials) as admin:
                return await work(admin)

        with silent_health_log(), asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(run())


def make_credentials(access_key: str | None, secret_key: str | None) -> Credentials | None:
    """Return the credentials of the options; None without any."""
    if access_key is None and secret_key is None:
        return None
    return Credentials(access_key or "", secret_key or "")


@contextmanager
def open_admin(name_servers: str, access_key: str | None = None, secret_key: str | None = None) -> Iterator[Admin]:
    """Open a blocking admin client."""
    credentials = make_credentials(access_key, secret_key)
    with silent_health_log(), Admin(name_servers, credentials=credentials) as admin:
        yield admin


@contextmanager
def silent_health_log() -> Iterator[None]:
    """Log no findings meanwhile: the error of the command says the same."""
    log = logging.getLogger("sparrow.client.health")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
