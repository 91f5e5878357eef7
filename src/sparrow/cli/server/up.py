"""`sparrow up`, `sparrow broker` and `sparrow name-server`: start servers and serve until Ctrl-C."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Annotated

import typer

from sparrow.cli import lifecycle
from sparrow.cli.server.arrow_import import import_arrow_without_pandas
from sparrow.cli.server.console_process import running_console
from sparrow.cli.server.first_administrator import with_administrator
from sparrow.cli.server.output import port_flag, print_broker, print_name_server, print_ready
from sparrow.cli.server.platform import Platform
from sparrow.cli.server.replica import serve_replica
from sparrow.cli.server.replicas import serve_replicas
from sparrow.cli.server.rocketmq_follower import promoted_settings, serve_follower
from sparrow.cli.server.shards import serve_shards
from sparrow.cli.server.telemetry_endpoint import DEFAULT_METRICS_PORT, print_metrics, telemetry_endpoint
from sparrow.cli.settings import DEFAULT_DATA_FOLDER, load_settings, usable_folder
from sparrow.client.options import DEFAULT_NAME_SERVERS, NAME_SERVERS_VARIABLE
from sparrow.model.errors import SettingsError
from sparrow.settings import Settings
from sparrow.telemetry.logs import configure_server_log

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
EtcdOption = Annotated[
    str | None, typer.Option(help="Endpoints of etcd, separated by ';', such as http://etcd-1:2379.", metavar="URLS")
]
MetricsPortOption = Annotated[
    int | None,
    typer.Option(help="Port of /metrics, /livez and /readyz over HTTP; 0 chooses a free one.", min=0, max=65535),
]
MetricsHostOption = Annotated[str | None, typer.Option(help="Address on which --metrics-port listens.")]
LogFormatOption = Annotated[str | None, typer.Option(help="Format of the log: text or json.")]
FlushOption = Annotated[str | None, typer.Option(help="async, or sync: acknowledge a send once it is on disk.")]


def up(
    data: DataOption = DEFAULT_DATA_FOLDER,
    host: HostOption = None,
    advertised_host: AdvertisedHostOption = None,
    port: PortOption = None,
    name_server_port: NameServerPortOption = None,
    shards: Annotated[int, typer.Option(help="Broker processes, such as one per core.", min=1, max=256)] = 1,
    replicas: Annotated[
        int | None, typer.Option(help="Replicas of a set on this machine, for trying it.", min=1, max=9)
    ] = None,
    store: StoreOption = None,
    flush: FlushOption = None,
    etcd: EtcdOption = None,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = None,
    log_format: LogFormatOption = None,
    console_port: Annotated[
        int | None, typer.Option(help="Port of the console; 0 chooses a free one.", min=0, max=65535)
    ] = None,
    no_console: Annotated[bool, typer.Option("--no-console", help="Do not serve the console.")] = False,
) -> None:
    """Start a name server, a broker and the console, and serve until Ctrl-C.

    Examples: [bold]sparrow up[/bold]   [bold]sparrow up --shards 4 --data /var/lib/sparrow[/bold]
    [bold]sparrow up --replicas 3[/bold] (with the etcd on the PATH)
    [bold]sparrow up --store mysql://user:password@db.example/messages[/bold]
    """
    settings = load_settings(
        host=host,
        advertised_host=advertised_host,
        port=port,
        name_server_port=name_server_port,
        store=store,
        flush=flush,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        log_format=log_format,
        etcd=etcd,
        console_port=console_port,
        console_enabled=False if no_console else None,
    )
    configure_server_log(settings.telemetry.log_format)
    if replicas is not None and shards > 1:
        raise SettingsError("--replicas", replicas, "the command line", "--replicas or --shards, not both")
    usable_folder(data)
    settings = with_administrator(settings, data)
    if replicas is not None:
        lifecycle.run_until_stopped(lambda stop: serve_replicas(settings, data, replicas, stop))
    elif shards > 1:
        lifecycle.run_until_stopped(lambda stop: serve_shards(settings, data, shards, stop))
    else:
        import_arrow_without_pandas()
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
    name: Annotated[str | None, typer.Option(help="Name of the broker in routes, or room@name.")] = None,
    host: HostOption = None,
    advertised_host: AdvertisedHostOption = None,
    port: PortOption = None,
    store: StoreOption = None,
    flush: FlushOption = None,
    etcd: EtcdOption = None,
    replica: Annotated[
        int | None, typer.Option("--replica", help="Number of this replica in its set.", min=1, max=64, metavar="ID")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="When a replica set acknowledges a send: quorum, sync or async.")
    ] = None,
    role: Annotated[
        str | None, typer.Option(help="Fixed role, without etcd: async-master, sync-master or slave.")
    ] = None,
    broker_id: Annotated[
        int | None, typer.Option("--broker-id", help="Number of a slave, from 1 on.", min=0, max=64, metavar="ID")
    ] = None,
    master: Annotated[
        str | None, typer.Option(help="Address of a slave's master; otherwise the name server tells.")
    ] = None,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = None,
    log_format: LogFormatOption = None,
    follow_rocketmq: Annotated[
        str | None,
        typer.Option(help="Follow this live RocketMQ master instead of serving clients.", metavar="HOST:PORT"),
    ] = None,
    rocketmq_ha: Annotated[
        str | None, typer.Option(help="HA port of that master, if it is not where it says.", metavar="HOST:PORT")
    ] = None,
    stop_on_stdin_eof: Annotated[
        bool, typer.Option("--stop-on-stdin-eof", help="Stop when standard input ends.", hidden=True)
    ] = False,
) -> None:
    """Start one broker.

    Example: [bold]sparrow broker --name broker-b --port 10921 --name-servers mq-1:9876 --data ./b[/bold]
    Of several brokers with the same --store and the same name, one leads and the others stand by.
    A replica of a set, see [bold]sparrow cluster init[/bold]:
    [bold]sparrow broker --replica 1 --etcd http://etcd-1:2379 --name-servers mq-1:9876 --data ./r1[/bold]
    A master and its slave: [bold]sparrow broker --role sync-master[/bold]
    [bold]sparrow broker --role slave --broker-id 1 --port 10921 --data ./slave[/bold]
    Copy a live RocketMQ master, and take over with [bold]sparrow cluster promote[/bold]:
    [bold]sparrow broker --follow-rocketmq rocketmq-a:10911 --data ./a[/bold]
    """
    settings = load_settings(
        name=name,
        host=host,
        advertised_host=advertised_host,
        port=port,
        store=store,
        flush=flush,
        etcd=etcd,
        replica_id=replica,
        role=role,
        broker_id=broker_id,
        master=master,
        policy=policy,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        log_format=log_format,
        rocketmq=follow_rocketmq,
        rocketmq_ha=rocketmq_ha,
    )
    configure_server_log(settings.telemetry.log_format)
    given_name_servers = name_servers or settings.broker.name_servers
    registered_with = name_servers or settings.broker.name_servers or DEFAULT_NAME_SERVERS
    changes = {"name_servers": registered_with}
    settings = settings.model_copy(update={"broker": settings.broker.model_copy(update=changes)})
    usable_folder(data)
    import_arrow_without_pandas()
    if settings.follow.rocketmq:
        lifecycle.run_until_stopped(lambda stop: serve_follower(settings, data, given_name_servers, stop))
        return
    settings = promoted_settings(settings, data, given_name_servers)
    if settings.replication.etcd or settings.replication.role != "replica":
        lifecycle.run_until_stopped(
            lambda stop: serve_replica(settings, data, stop, stop_on_stdin_eof=stop_on_stdin_eof)
        )
        return
    settings = with_administrator(settings, data)  # replicas share a token, which only the settings can have
    lifecycle.run_until_stopped(lambda stop: _serve_broker(settings, data, stop, stop_on_stdin_eof=stop_on_stdin_eof))


def name_server(
    data: DataOption = DEFAULT_DATA_FOLDER,
    host: HostOption = None,
    port: NameServerPortOption = None,
    metrics_port: MetricsPortOption = None,
    metrics_host: MetricsHostOption = None,
    log_format: LogFormatOption = None,
) -> None:
    """Start one name server. Several may run; brokers register with all of them.

    Example: [bold]sparrow name-server --port 9877[/bold]
    """
    settings = load_settings(
        host=host,
        name_server_port=port,
        metrics_port=metrics_port,
        metrics_host=metrics_host,
        log_format=log_format,
    )
    configure_server_log(settings.telemetry.log_format)
    usable_folder(data)
    lifecycle.run_until_stopped(lambda stop: _serve_name_server(settings, data, stop))


async def _serve_platform(settings: Settings, data: Path, stop: asyncio.Event) -> None:
    started_s = time.perf_counter()
    platform = Platform(
        data,
        name_server=settings.name_server,
        broker=settings.broker,
        log=settings.log,
        sql=settings.sql,
        telemetry=settings.telemetry,
        metrics_port=DEFAULT_METRICS_PORT,
    )
    async with platform:
        print_name_server(platform.name_servers)
        print_broker(settings.broker.name, str(platform.address))
        print_metrics(platform.telemetry_server)
        print_ready(data, started_s, settings.broker.store)
        async with running_console(settings, platform.name_servers, data):
            await stop.wait()


async def _serve_broker(settings: Settings, data: Path, stop: asyncio.Event, *, stop_on_stdin_eof: bool) -> None:
    from sparrow.broker.server import BrokerServer

    started_s = time.perf_counter()
    if stop_on_stdin_eof:
        lifecycle.stop_on_stdin_eof(stop)
    has_metrics = settings.telemetry.metrics_port is not None
    server = BrokerServer(
        settings.broker,
        data / "store",
        settings.log,
        sql_settings=settings.sql,
        telemetry=settings.telemetry if has_metrics else None,
    )
    with port_flag("--port"):
        await server.start()
    try:
        async with telemetry_endpoint(settings.telemetry, [server]) as endpoint:
            print_broker(settings.broker.name, str(server.address))
            print_metrics(endpoint)
            print_ready(data, started_s, settings.broker.store)
            await stop.wait()
    finally:
        await server.stop()


async def _serve_name_server(settings: Settings, data: Path, stop: asyncio.Event) -> None:
    from sparrow.nameserver.server import NameServer

    started_s = time.perf_counter()
    has_metrics = settings.telemetry.metrics_port is not None
    server = NameServer(settings.name_server, kv_path=data / "naming.json", has_metrics=has_metrics)
    with port_flag("--port"):
        await server.start()
    try:
        async with telemetry_endpoint(settings.telemetry, [server]) as endpoint:
            print_name_server(str(server.address))
            print_metrics(endpoint)
            print_ready(data, started_s)
            await stop.wait()
    finally:
        await server.stop()
