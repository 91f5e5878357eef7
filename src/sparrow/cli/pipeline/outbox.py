"""`sparrow pipeline outbox`: a large backlog of the event bus to its topics."""

from __future__ import annotations

from typing import Annotated

import typer

from sparrow.cli.bus.location import BusOption, DatabaseOption, PrefixOption, SchemaOption
from sparrow.cli.pipeline.options import (
    ClientSettingOption,
    MasterOption,
    NameServerOption,
    SparkConfOption,
    open_session,
    parse_pairs,
)
from sparrow.cli.pipeline.outbox_relay import BulkRelay

EXAMPLES = """
Examples:

[bold]sparrow pipeline outbox --database postgresql://shop@db/shop -n mq:9876[/bold]

[bold]sparrow pipeline outbox --bus shop.events:bus -n mq:9876 --tasks 8 --master spark://head:7077[/bold]
"""


def outbox(
    name_servers: NameServerOption = "127.0.0.1:9876",
    bus: BusOption = None,
    database: DatabaseOption = None,
    schema: SchemaOption = "cap",
    table_prefix: PrefixOption = "cap",
    version: Annotated[
        str | None, typer.Option(help="Of the events, where an application uses several.", metavar="VERSION")
    ] = None,
    form: Annotated[str, typer.Option(help="How events travel: document, or cap (properties and a bare body).")] = (
        "document"
    ),
    tasks: Annotated[int | None, typer.Option(help="Relays side by side; unless told, one a core.", min=1)] = None,
    lot: Annotated[int, typer.Option(help="Events that are claimed and sent together.", min=1, max=20_000)] = 2_000,
    option: ClientSettingOption = None,
    master: MasterOption = None,
    conf: SparkConfOption = None,
) -> None:
    """Send what is published and not sent yet, with a relay in every task.

    Running relays may go on: each event is claimed by one of them all. What is due later stays.
    """
    from sparrow.cli.pipeline.progress_bar import show_progress
    from sparrow.spark.jobs import outbox as job

    if form not in ("document", "cap"):
        raise typer.BadParameter("say document or cap", param_hint="--form")
    relay = BulkRelay(
        name_servers=name_servers,
        bus=bus,
        database=database,
        schema=schema,
        table_prefix=table_prefix,
        version=version,
        form=form,
        lot=lot,
        client=parse_pairs("--option", option),
    )
    relay.count_unsent_events()  # what cannot work is said before Spark starts
    with show_progress("outbox") as on_progress:
        spark = open_session("outbox", master, parse_pairs("--conf", conf))
        done = job.run(spark, job.OutboxJob(tasks=tasks), relay, relay.count_unsent_events, on_progress=on_progress)
    typer.echo(
        f"{done.sent:,} events sent, {done.rows_per_s:,.0f} a second; {done.left:,} are left: not due, in other hands, "
        "or behind one of their key that failed"
    )
    if done.failed:
        typer.secho(f"{done.failed:,} attempts failed; those events are tried again later", fg="yellow", err=True)
