"""`sparrow up`: everything in one process; `sparrow broker` and `sparrow name-server`: the parts on their own."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError

from sparrow.cli import lifecycle
from sparrow.cli.server.platform import Platform
from sparrow.model.errors import SettingsError
from sparrow.settings import Settings
from sparrow.store.sql.drivers.url import parse_database_url

DataOption = Annotated[Path, typer.Option(help="Where everything is kept.")]
HostOption = Annotated[str | None, typer.Option(help="Address to listen on; 0.0.0.0 is everywhere.")]
AdvertisedHostOption = Annotated[str | None, typer.Option(help="Address clients are told to connect to.")]
PortOption = Annotated[int | None, typer.Option(help="The broker's port; 0 takes a free one.", min=0, max=65535)]
NameServerPortOption = Annotated[
    int | None, typer.Option(help="The name server's port; 0 takes a free one.", min=0, max=65535)
]
StoreOption = Annotated[
    str | None,
    typer.Option(help="Keep messages in a database: mysql://…, postgresql://… or sqlite:///…", metavar="URL"),
]
FlushOption = Annotated[str | None, typer.Option(help="async, or sync: acknowledge sends once they are on disk.")]

SHARD_PORT_STEP = 10
"""RocketMQ's brokers use the ports beside their own for other things; tools may expect them free."""


def up(
    data: DataOption = Path("sparrow-data"),
    host: HostOption = None,
    advertised_host: AdvertisedHostOption = None,
    port: PortOption = None,
    name_server_port: NameServerPortOption = None,
    shards: Annotated[int, typer.Option(help="Broker processes; more cores, more shards.", min=1, max=256)] = 1,
    store: StoreOption = None,
    flush: FlushOption = None,
) -> None:
    """Start a name server and a broker, and serve until Ctrl-C.

    Examples: [bold]sparrow up[/bold]   [bold]sparrow up --shards 4 --data /var/lib/sparrow[/bold]
    [bold]sparrow up --store mysql://user:password@db.example/messages[/bold]
    """
    settings = load_settings(
        host=host,
        advertised_host=advertised_host,
        port=port,
        name_server_port=name_server_port,
        store=store,
        flush=flush,
    )
    if shards > 1:
        lifecycle.run_until_stopped(lambda stop: _serve_shards(settings, data, shards, stop))
    else:
        lifecycle.run_until_stopped(lambda stop: _serve_all(settings, data, stop))


def broker(
    name_servers: Annotated[str, typer.Option(help="Where to register: host:port, several parted by ';'.")],
    data: DataOption = Path("sparrow-data"),
    name: Annotated[str | None, typer.Option(help="The broker's name in routes.")] = None,
    host: HostOption = None,
    advertised_host: AdvertisedHostOption = None,
    port: PortOption = None,
    store: StoreOption = None,
    flush: FlushOption = None,
    stops_with_input: Annotated[
        bool, typer.Option("--stops-with-input", help="Stop when standard input ends.", hidden=True)
    ] = False,
) -> None:
    """Start one broker.

    Example: [bold]sparrow broker --name broker-b --port 10921 --name-servers 127.0.0.1:9876 --data ./b[/bold]
    Brokers with the same --store and the same name share the work.
    """
    settings = load_settings(host=host, advertised_host=advertised_host, port=port, store=store, flush=flush)
    told = {"name_servers": name_servers} | ({"name": name} if name else {})
    settings = settings.model_copy(update={"broker": settings.broker.model_copy(update=told)})
    lifecycle.run_until_stopped(lambda stop: _serve_broker(settings, data, stop, stops_with_input=stops_with_input))


def name_server(
    data: DataOption = Path("sparrow-data"), host: HostOption = None, port: NameServerPortOption = None
) -> None:
    """Start one name server. Any number may run; brokers register with all of them.

    Example: [bold]sparrow name-server --port 9877[/bold]
    """
    settings = load_settings(host=host, name_server_port=port)
    lifecycle.run_until_stopped(lambda stop: _serve_naming(settings, data, stop))


def load_settings(
    *,
    host: str | None = None,
    advertised_host: str | None = None,
    port: int | None = None,
    name_server_port: int | None = None,
    store: str | None = None,
    flush: str | None = None,
) -> Settings:
    """What flags say, over what the environment and `sparrow.toml` do."""

    def told(**values: object) -> dict[str, object]:
        return {name: value for name, value in values.items() if value is not None}

    sections = {
        "name_server": told(host=host, port=name_server_port),
        "broker": told(host=host, advertised_host=advertised_host, port=port, store=store),
        "log": told(flush=flush),
    }
    try:
        return Settings(**{name: section for name, section in sections.items() if section})  # type: ignore[arg-type]
    except ValidationError as cause:
        first = cause.errors()[0]
        key = ".".join(map(str, first["loc"]))
        suggestion = f"something else ({first['msg']})"
        raise SettingsError(key, first["input"], "flags, SPARROW_* or sparrow.toml", suggestion) from cause


async def _serve_all(settings: Settings, data: Path, stop: asyncio.Event) -> None:
    begun = time.perf_counter()
    platform = Platform(
        data, name_server=settings.name_server, broker=settings.broker, log=settings.log, sql=settings.sql
    )
    async with platform:
        print_name_server(platform.name_servers)
        print_broker(settings.broker.name, str(platform.address))
        _say_ready(data, begun, settings.broker.store)
        await stop.wait()


async def _serve_broker(settings: Settings, data: Path, stop: asyncio.Event, *, stops_with_input: bool) -> None:
    from sparrow.broker.server import BrokerServer

    begun = time.perf_counter()
    if stops_with_input:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    async with BrokerServer(settings.broker, data / "store", settings.log, sql_settings=settings.sql) as server:
        print_broker(settings.broker.name, str(server.address))
        _say_ready(data, begun, settings.broker.store)
        await stop.wait()


async def _serve_naming(settings: Settings, data: Path, stop: asyncio.Event) -> None:
    from sparrow.nameserver.server import NameServer

    begun = time.perf_counter()
    async with NameServer(settings.name_server, kv_path=data / "naming.json") as server:
        print_name_server(str(server.address))
        _say_ready(data, begun)
        await stop.wait()


async def _serve_shards(settings: Settings, data: Path, shards: int, stop: asyncio.Event) -> None:
    """The name server here, each broker in a process of its own. One that dies is started again."""
    from sparrow.nameserver.server import NameServer

    begun = time.perf_counter()
    async with NameServer(settings.name_server, kv_path=data / "naming.json") as server:
        print_name_server(str(server.address))
        ready = [asyncio.Event() for _ in range(shards)]
        keepers = [
            asyncio.create_task(_keep_shard(settings, data, number, str(server.address), ready[number], stop))
            for number in range(shards)
        ]
        telling = asyncio.create_task(_say_when_all(ready, data, begun, settings.broker.store))
        await asyncio.gather(*keepers)
        telling.cancel()


async def _say_when_all(ready: list[asyncio.Event], data: Path, begun: float, store: str | None) -> None:
    for event in ready:
        await event.wait()
    _say_ready(data, begun, store)


async def _keep_shard(
    settings: Settings, data: Path, number: int, name_servers: str, ready: asyncio.Event, stop: asyncio.Event
) -> None:
    broker = settings.broker
    port = broker.port + SHARD_PORT_STEP * number if broker.port else 0
    words = [
        # On one database they are one broker to the world, of whom one leads.
        *(
            "--name",
            broker.name if broker.store else f"{broker.name}-{number}",
            "--port",
            str(port),
            "--host",
            broker.host,
        ),
        *(
            "--stops-with-input",
            "--name-servers",
            name_servers,
            "--data",
            str(data / f"shard-{number}"),
            "--flush",
            settings.log.flush,
        ),
        *(("--advertised-host", broker.advertised_host) if broker.advertised_host else ()),
        *(("--store", broker.store) if broker.store else ()),
    ]
    while not stop.is_set():
        # A group of its own: Ctrl-C reaches us alone, and we stop the shards in order.
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sparrow", "broker", *words),
            stdin=asyncio.subprocess.PIPE,  # nothing is said; it closes when we die, however we die
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        talking = asyncio.create_task(_pass_on(process, ready))
        leaving, stopping = asyncio.create_task(process.wait()), asyncio.create_task(stop.wait())
        await asyncio.wait([leaving, stopping], return_when="FIRST_COMPLETED")
        if not leaving.done():
            process.terminate()
        await leaving
        await talking
        if not stop.is_set():
            typer.secho(f"shard {number} left with code {process.returncode}: starting it again", err=True)
            await asyncio.wait([stopping], timeout=1)
        stopping.cancel()


async def _pass_on(process: asyncio.subprocess.Process, ready: asyncio.Event) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        text = line.decode(errors="replace").rstrip()
        if text.startswith("ready"):
            ready.set()
        else:
            typer.echo(text)


def print_name_server(address: str) -> None:
    typer.echo(f"name server {address}")


def print_broker(name: str, address: str) -> None:
    typer.echo(f"broker {name} {address}")


def _say_ready(data: Path, begun: float, store: str | None = None) -> None:
    where = f"messages in {parse_database_url(store)}" if store is not None else f"data in {data.resolve()}"
    typer.echo(f"ready after {time.perf_counter() - begun:.2f} s; {where}; Ctrl-C stops it")
    sys.stdout.flush()
