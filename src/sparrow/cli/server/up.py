"""`sparrow up`, `sparrow broker` and `sparrow name-server`: start servers and serve until Ctrl-C."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from sparrow.cli import lifecycle
from sparrow.cli.server.output import port_flag, print_broker, print_name_server, print_ready
from sparrow.cli.server.platform import Platform
from sparrow.cli.server.shards import serve_shards
from sparrow.cli.settings import load_settings, usable_folder
from sparrow.client.options import DEFAULT_NAME_SERVERS, NAME_SERVERS_VARIABLE
from sparrow.settings import Settings

DataOption = Annotated[Path, typer.Option(help="Folder for all data.")]
HostOption = Annotated[str | None, typer.Option(help="Address to listen on; 0.0.0.0 listens on all interfaces.")]
AdvertisedHostOption = Annotated[
    str | None, typer.Option(help="Address that clients connect to, if it is not the one to listen on.")
]
PortOption = Annotated[int | None, typer.Option(help="Port of the broker; 0 chooses a free one.", min=0, max=65535)]
NameServerPortOption = Annotated[
    int | None, typer.Option(help="Port of the name server; 0 chooses a free one.", min=0, max=65535)
]
StoreOption = Annotated[
    str | None,
    typer.Option(help="Database that keeps the messages: mysql://…, postgresql://… or sqlite:///…", metavar="URL"),
]
FlushOption = Annotated[str | None, typer.Option(help="async, or sync: acknowledge a send once it is on disk.")]

DEFAULT_DATA_FOLDER = Path("sparrow-data")


def up(
    data: DataOption = DEFAULT_DATA_FOLDER,
    host: HostOption = None,
    advertised_host: AdvertisedHostOption = None,
    port: PortOption = None,
    name_server_port: NameServerPortOption = None,
    shards: Annotated[int, typer.Option(help="Broker processes, such as one per core.", min=1, max=256)] = 1,
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
    usable_folder(data)
    if shards > 1:
        lifecycle.run_until_stopped(lambda stop: serve_shards(settings, data, shards, stop))
    else:
        lifecycle.run_until_stopped(lambda stop: _serve_platform(settings, data, stop))


def broker(
    name_servers: Annotated[
        str | None,
        typer.Option(
            "--name-servers",
            "-n",
            help="Name servers to register with: host:port, separated by ';'.",
            envvar=NAME_SERVERS_VARIABLE,
            show_default=DEFAULT_NAME_SERVERS,
        ),
    ] = None,
    data: DataOption = DEFAULT_DATA_FOLDER,
    name: Annotated[str | None, typer.Option(help="Name of the broker in routes.")] = None,
    host: HostOption = None,
    advertised_host: AdvertisedHostOption = None,
    port: PortOption = None,
    store: StoreOption = None,
    flush: FlushOption = None,
    stop_on_stdin_eof: Annotated[
        bool, typer.Option("--stop-on-stdin-eof", help="Stop when standard input ends.", hidden=True)
    ] = False,
) -> None:
    """Start one broker.

    Example: [bold]sparrow broker --name broker-b --port 10921 --name-servers mq-1:9876 --data ./b[/bold]
    Of several brokers with the same --store and the same name, one leads and the others stand by.
    """
    settings = load_settings(host=host, advertised_host=advertised_host, port=port, store=store, flush=flush)
    registered_with = name_servers or settings.broker.name_servers or DEFAULT_NAME_SERVERS
    changes = {"name_servers": registered_with} | ({"name": name} if name else {})
    settings = settings.model_copy(update={"broker": settings.broker.model_copy(update=changes)})
    usable_folder(data)
    lifecycle.run_until_stopped(lambda stop: _serve_broker(settings, data, stop, stop_on_stdin_eof=stop_on_stdin_eof))


def name_server(
    data: DataOption = DEFAULT_DATA_FOLDER, host: HostOption = None, port: NameServerPortOption = None
) -> None:
    """Start one name server. Several may run; brokers register with all of them.

    Example: [bold]sparrow name-server --port 9877[/bold]
    """
    settings = load_settings(host=host, name_server_port=port)
    usable_folder(data)
    lifecycle.run_until_stopped(lambda stop: _serve_name_server(settings, data, stop))


async def _serve_platform(settings: Settings, data: Path, stop: asyncio.Event) -> None:
    started_s = time.perf_counter()
    platform = Platform(
        data, name_server=settings.name_server, broker=settings.broker, log=settings.log, sql=settings.sql
    )
    async with platform:
        print_name_server(platform.name_servers)
        print_broker(settings.broker.name, str(platform.address))
        print_ready(data, started_s, settings.broker.store)
        await stop.wait()


async def _serve_broker(settings: Settings, data: Path, stop: asyncio.Event, *, stop_on_stdin_eof: bool) -> None:
    from sparrow.broker.server import BrokerServer

    started_s = time.perf_counter()
    if stop_on_stdin_eof:
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), stop.set)
    server = BrokerServer(settings.broker, data / "store", settings.log, sql_settings=settings.sql)
    with port_flag("--port"):
        await server.start()
    try:
        print_broker(settings.broker.name, str(server.address))
        print_ready(data, started_s, settings.broker.store)
        await stop.wait()
    finally:
        await server.stop()


async def _serve_name_server(settings: Settings, data: Path, stop: asyncio.Event) -> None:
    from sparrow.nameserver.server import NameServer

    started_s = time.perf_counter()
    server = NameServer(settings.name_server, kv_path=data / "naming.json")
    with port_flag("--port"):
        await server.start()
    try:
        print_name_server(str(server.address))
        print_ready(data, started_s)
        await stop.wait()
    finally:
        await server.stop()
