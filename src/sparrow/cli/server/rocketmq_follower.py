"""A broker that follows a live RocketMQ master until it is promoted, as `sparrow broker --follow-rocketmq` runs it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from sparrow.cli.server.output import port_flag, print_broker, print_ready
from sparrow.model.access.token import Credentials
from sparrow.model.errors import SettingsError
from sparrow.net.address import Address
from sparrow.net.listener import advertised_address
from sparrow.replication.rocketmq.follower import FollowerStatus, RocketMQFollower
from sparrow.replication.rocketmq.follower_server import FollowerServer
from sparrow.replication.rocketmq.follower_state import load_follower_state
from sparrow.replication.rocketmq.promotion import finish_promotion, kept_settings
from sparrow.settings import MIB, Settings

_REFRESH_S = 0.5


def promoted_settings(settings: Settings, data: Path, name_servers: str = "") -> Settings:
    """Return the settings for a directory that was promoted: the name and the cluster of its former master.

    A promotion that was interrupted is finished first. Other directories keep their settings.
    """
    path = data / "store"
    if settings.broker.store is not None or load_follower_state(path) is None:
        return settings
    settings = settings.model_copy(update={"log": kept_settings(path, settings.log)})
    state = finish_promotion(path, settings.log)
    changes = {"name": state.broker_name, "cluster": state.cluster}
    return _update(settings, "broker", **changes, name_servers=name_servers or state.name_servers)


def _update(settings: Settings, section: str, **changes: object) -> Settings:
    return settings.model_copy(update={section: getattr(settings, section).model_copy(update=changes)})


async def serve_follower(settings: Settings, data: Path, name_servers: str, stop: asyncio.Event) -> None:
    """Follow until the event is set; once promoted, serve as a broker until then."""
    broker, follow = settings.broker, settings.follow
    if broker.store is not None:
        raise SettingsError("broker.store", broker.store, "the settings", "no database: a follower copies a log")
    if settings.replication.etcd:
        raise SettingsError(
            "replication.etcd", settings.replication.etcd, "the settings", "no etcd: promote the follower first"
        )
    follower = RocketMQFollower(
        data / "store",
        settings.log,
        Address.parse(follow.rocketmq),
        ha_address=Address.parse(follow.rocketmq_ha) if follow.rocketmq_ha else None,
        credentials=(
            Credentials(follow.access_key, follow.secret_key.get_secret_value()) if follow.access_key else None
        ),
        name_servers=name_servers,
    )
    server = FollowerServer(follower, broker)
    with port_flag("--port"):
        await server.start()
    try:
        typer.echo(f"following {follower.state.broker_name} at {follow.rocketmq}; Ctrl-C stops it")
        address = advertised_address(broker.host, server.port, broker.advertised_host)
        typer.echo(f"take over with: sparrow cluster promote --broker {address}")
        async with _progress_shown(follower):
            await _first_of(stop, follower.is_promoted)
    finally:
        await server.stop()
    if follower.is_promoted.is_set() and not stop.is_set():
        await _serve_promoted(_update(settings, "broker", port=server.port), data, name_servers, stop)


async def _first_of(*events: asyncio.Event) -> None:
    tasks = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


async def _serve_promoted(settings: Settings, data: Path, name_servers: str, stop: asyncio.Event) -> None:
    from sparrow.broker.server import BrokerServer

    started_s = time.perf_counter()
    settings = await asyncio.to_thread(promoted_settings, settings, data, name_servers)
    async with BrokerServer(settings.broker, data / "store", settings.log) as server:
        print_broker(settings.broker.name, str(server.address))
        print_ready(data, started_s)
        await stop.wait()


# -- progress ---------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def _progress_shown(follower: RocketMQFollower) -> AsyncIterator[None]:
    """Show how far the copy is: a bar in a terminal, else a line when it has caught up and when it has not."""
    console = Console(stderr=True)
    show = _show_bar(follower, console) if console.is_terminal else _print_changes(follower)
    task = asyncio.create_task(show)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def has_caught_up(status: FollowerStatus) -> bool:
    """Return whether only the newest messages are missing: a busy master is always some bytes ahead."""
    return status.error is None and status.master_end > 0 and status.bytes_behind < MIB


def progress_text(status: FollowerStatus) -> str:
    """Return a line about the copy."""
    if status.error is not None:
        return f"waiting: {status.error}"
    behind = "caught up" if has_caught_up(status) else f"{status.bytes_behind / MIB:,.1f} MiB behind"
    return f"{behind}, {status.bytes_per_s / MIB:.1f} MiB/s"


async def _show_bar(follower: RocketMQFollower, console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        work = bar.add_task(f"following {follower.state.broker_name}", total=None, state="connecting")
        while True:
            status = follower.status()
            total = max(1, status.master_end - status.first)
            bar.update(work, completed=status.end - status.first, total=total, state=progress_text(status))
            await asyncio.sleep(_REFRESH_S)


async def _print_changes(follower: RocketMQFollower) -> None:
    had_caught_up = False
    while True:
        status = follower.status()
        if has_caught_up(status) != had_caught_up:
            typer.echo(progress_text(status))
            had_caught_up = not had_caught_up
        await asyncio.sleep(_REFRESH_S)
