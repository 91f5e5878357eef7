"""`sparrow console`: serve the REST API and the web pages."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer

from sparrow.cli import lifecycle
from sparrow.cli.admin_client import AccessKeyOption, SecretKeyOption
from sparrow.cli.server.output import port_flag
from sparrow.cli.settings import load_settings
from sparrow.cli.settings.command import setting_rows
from sparrow.client.options import DEFAULT_NAME_SERVERS, NAME_SERVERS_VARIABLE
from sparrow.extras import require
from sparrow.model.access.token import Credentials
from sparrow.model.errors import SettingsError
from sparrow.settings import ConsoleSettings, Settings

EXAMPLES = """
Examples:

[bold]sparrow console[/bold]

[bold]sparrow console --name-servers mq-1:9876 --port 9000[/bold]

[bold]sparrow console --cluster berlin=mq-1:9876 --cluster 'oslo=mq-2:9876;mq-3:9876'[/bold]
"""


def console(
    name_servers: Annotated[
        str | None,
        typer.Option(
            "--name-servers",
            "-n",
            help="Name servers of one cluster: host:port, separated by ';'.",
            envvar=NAME_SERVERS_VARIABLE,
            show_default=DEFAULT_NAME_SERVERS,
        ),
    ] = None,
    cluster: Annotated[
        list[str] | None,
        typer.Option(help="Or several clusters, each with a name; repeatable.", metavar="NAME=SERVERS"),
    ] = None,
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; other than loopback needs console.auth.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 chooses a free one.", min=0, max=65535)] = None,
    bus_database: Annotated[
        str | None,
        typer.Option("--bus-database", help="Database with the tables of an event bus.", metavar="URL"),
    ] = None,
    pipelines: Annotated[
        Path | None,
        typer.Option(help="Folder of pipeline files (.toml) to show, start and stop.", metavar="FOLDER"),
    ] = None,
    access_key: AccessKeyOption = None,
    secret_key: SecretKeyOption = None,
    stop_on_stdin_eof: Annotated[
        bool, typer.Option("--stop-on-stdin-eof", help="Stop when standard input ends.", hidden=True)
    ] = False,
) -> None:
    """Serve the REST API and the web pages, until Ctrl-C. It is a client of the brokers, and may run anywhere."""
    require("fastapi", "uvicorn", "jinja2", extra="console", for_="sparrow console")
    folder = None if pipelines is None else str(pipelines)
    loaded = load_settings(console_host=host, console_port=port, bus_database=bus_database, pipelines_folder=folder)
    settings = loaded.console
    origins = _origins(loaded, host=host, port=port, bus_database=bus_database)
    if folder is not None:
        origins["console.pipelines_folder"] = "--pipelines"
    served = _clusters(name_servers, cluster) or dict(settings.clusters)
    credentials = None
    if access_key is not None or secret_key is not None:
        credentials = Credentials(access_key or "", secret_key or "")
    lifecycle.run_until_stopped(
        lambda stop: _serve(settings, served, credentials, origins, stop, stop_on_stdin_eof=stop_on_stdin_eof)
    )


def _clusters(name_servers: str | None, named: list[str] | None) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in named or ():
        name, separator, servers = text.partition("=")
        if not separator or not name or not servers:
            raise SettingsError("--cluster", text, "the command line", "a name and name servers: berlin=mq-1:9876")
        found[name] = servers
    if name_servers is not None and not found:
        found["default"] = name_servers
    return found


def _origins(loaded: Settings, **flags: object) -> dict[str, str]:
    """Return where the settings of the console come from, as `sparrow settings` shows it, and from which flag."""
    found = {row.name: row.origin for row in setting_rows(loaded) if row.name.startswith("console.")}
    given = {name: value for name, value in flags.items() if value is not None}
    return found | {f"console.{name}": f"--{name.replace('_', '-')}" for name in given}


async def _serve(
    settings: ConsoleSettings,
    clusters: dict[str, str],
    credentials: Credentials | None,
    origins: dict[str, str],
    stop: asyncio.Event,
    *,
    stop_on_stdin_eof: bool,
) -> None:
    from sparrow.console import create_app
    from sparrow.console.security import check_listening
    from sparrow.console.server import ConsoleServer
    from sparrow.net.access.tls import http_context

    check_listening(settings)
    if stop_on_stdin_eof:
        lifecycle.stop_on_stdin_eof(stop)
    server = ConsoleServer(
        create_app(clusters or None, settings=settings, credentials=credentials, origins=origins),
        settings.host,
        settings.port,
        tls=http_context(settings),
    )
    with port_flag("--port"):
        await server.start()
    try:
        typer.echo(f"console {server.url}")
        sys.stdout.flush()
        await stop.wait()
    finally:
        await server.stop()
