"""`sparrow bench`: a quick benchmark of a platform."""

from __future__ import annotations

import asyncio
import secrets
import sys
from contextlib import AsyncExitStack
from typing import Annotated

import typer
from rich.console import Console
from rich.status import Status

from sparrow import __version__
from sparrow.cli.admin_client import AccessKeyOption, SecretKeyOption, make_credentials, silent_health_log
from sparrow.cli.bench.measurement import BenchReport, Measurement, plot_histogram
from sparrow.cli.output import JsonOption, print_json, print_table
from sparrow.client.aio.admin.admin import Admin
from sparrow.client.blocking.loop_thread import new_event_loop
from sparrow.model.access.token import Credentials

EXAMPLES = """
Examples:

[bold]sparrow bench[/bold]   a temporary platform on this machine, about 10 s

[bold]sparrow bench --name-servers mq-1:9876 --size 1024 --seconds 10[/bold]

[bold]sparrow bench --only send --only latency --json[/bold]
"""
_BODY_BYTES_MAX = 1 << 20
_PLOT_WIDTH = 40


def bench(
    name_servers: Annotated[
        str | None,
        typer.Option("--name-servers", "-n", help="Platform to measure; default: a temporary one. It is under load."),
    ] = None,
    size: Annotated[int, typer.Option(help="Bytes of a message body.", min=0, max=_BODY_BYTES_MAX)] = 200,
    seconds: Annotated[float, typer.Option(help="Seconds for each scenario.", min=0.05, max=3_600)] = 2.0,
    queues: Annotated[int, typer.Option(help="Queues of the topic on each broker.", min=1, max=1_024)] = 4,
    only: Annotated[
        list[str] | None,
        typer.Option(help="Only this scenario: send, concurrent, batch, pull or latency. Repeatable."),
    ] = None,
    as_json: JsonOption = False,
    access_key: AccessKeyOption = None,
    secret_key: SecretKeyOption = None,
) -> None:
    """Measure sends, batches, pulls and the latency from end to end, on a topic that is deleted afterwards.

    One client runs in this process, so the figures are what one Python process achieves, not the limit of a broker.
    SPARROW_NAME_SERVERS is not used: nobody should put load on a platform by accident.
    """
    from sparrow.cli.bench.scenarios import SCENARIOS

    chosen = only or list(SCENARIOS)
    if unknown := set(chosen) - SCENARIOS.keys():
        raise typer.BadParameter(f"{', '.join(sorted(unknown))} is no scenario: use {', '.join(SCENARIOS)}")
    credentials = make_credentials(access_key, secret_key)
    with silent_health_log(), asyncio.Runner(loop_factory=new_event_loop) as runner:
        measured = runner.run(_run(name_servers, credentials, chosen, bytes(size), seconds, queues))
    report = BenchReport(
        platform=name_servers or "temporary", version=__version__, body_bytes=size, measurements=measured
    )
    if as_json:
        print_json(report)
    else:
        _print(report)


async def _run(
    name_servers: str | None,
    credentials: Credentials | None,
    chosen: list[str],
    body: bytes,
    seconds: float,
    queues: int,
) -> list[Measurement]:
    from sparrow.cli.bench.scenarios import SCENARIOS
    from sparrow.cli.bench.temporary_platform import temporary_platform

    status = Status("", console=Console(stderr=True))
    topic = f"sparrow_bench_{secrets.token_hex(4)}"
    async with AsyncExitStack() as stack:
        if sys.stderr.isatty():
            stack.enter_context(status)
        if name_servers is None:
            status.update("starting a temporary platform")
            name_servers = await stack.enter_async_context(temporary_platform())
        admin = await stack.enter_async_context(Admin(name_servers, credentials=credentials))
        await admin.create_topic(topic, queues)
        stack.push_async_callback(admin.delete_topic, topic)
        if "pull" in chosen and not {"send", "concurrent", "batch"} & set(chosen):
            await SCENARIOS["batch"](admin, topic, body, seconds)  # something to read
        measured = []
        for name in chosen:
            status.update(f"measuring {name}")
            measured.append(await SCENARIOS[name](admin, topic, body, seconds))
        return measured


def _print(report: BenchReport) -> None:
    columns = ("scenario", "messages", "per second", "MiB/s", "p50 ms", "p90 ms", "p99 ms", "p99.9 ms", "max ms")
    rows = []
    for each in report.measurements:
        latency = each.latency
        figures = (
            ("", "", "", "", "")
            if latency is None
            else tuple(
                f"{value:.2f}"
                for value in (latency.p50_ms, latency.p90_ms, latency.p99_ms, latency.p999_ms, latency.max_ms)
            )
        )
        rows.append((each.scenario, each.messages, f"{each.messages_per_s:,.0f}", each.mib_per_s, *figures))
    print_table(columns, rows)
    for each in report.measurements:
        if each.histogram:
            typer.echo(f"\nlatency of: {each.scenario}")
            for line in plot_histogram(each.histogram, _PLOT_WIDTH):
                typer.echo(line)
