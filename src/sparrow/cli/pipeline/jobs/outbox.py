"""`sparrow pipeline outbox`: send a large backlog of the event bus to its topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from sparrow.cli.bus.location import BusOption, DatabaseOption, PrefixOption, SchemaOption
from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.cli.pipeline.jobs.outbox_relay import BulkRelay
from sparrow.cli.pipeline.parameters.common import ClientParameters, SparkParameters

EXAMPLES = """
Examples:

[bold]sparrow pipeline outbox --database postgresql://shop@db/shop -n mq:9876[/bold]

[bold]sparrow pipeline outbox --bus shop.events:bus -n mq:9876 --tasks 8 --master spark://head:7077[/bold]
"""


@dataclass(frozen=True, kw_only=True)
class OutboxBusParameters:
    """The event bus whose outbox is sent."""

    bus: BusOption = None
    database: DatabaseOption = None
    schema: SchemaOption = "cap"
    table_prefix: PrefixOption = "cap"
    version: Annotated[
        str | None, typer.Option(help="Version of the events, if the application uses several.", metavar="VERSION")
    ] = None
    form: Annotated[str, typer.Option(help="Format of the events: document, or cap (properties and a bare body).")] = (
        "document"
    )


@with_parameter_groups
def outbox(
    events: OutboxBusParameters,
    tasks: Annotated[
        int | None, typer.Option(help="Number of concurrent relays. Default: one per core.", min=1)
    ] = None,
    batch_size: Annotated[
        int,
        typer.Option("--batch-size", "--lot", help="Events claimed and sent together.", min=1, max=20_000),
    ] = 2_000,
    *,
    client: ClientParameters,
    spark: SparkParameters,
) -> None:
    """Send published events that are not sent yet, with a relay in every Spark task.

    Other relays can keep running: each event is claimed by one relay. Delayed events stay until they are due.
    """
    from sparrow.cli.pipeline.progress_bar import show_progress
    from sparrow.spark.jobs import outbox as job

    if events.form not in ("document", "cap"):
        raise typer.BadParameter(f"{events.form!r} is not a format: use document or cap", param_hint="--form")
    relay = BulkRelay(
        name_servers=client.name_servers,
        bus=events.bus,
        database=events.database,
        schema=events.schema,
        table_prefix=events.table_prefix,
        version=events.version,
        form=events.form,
        batch_size=batch_size,
        client=client.options,
    )
    relay.count_unsent_events()  # fails before Spark starts if the bus or its database is not usable
    with show_progress("outbox") as on_progress:
        session = spark.open_session("outbox")
        done = job.run(session, job.OutboxJob(tasks=tasks), relay, relay.count_unsent_events, on_progress=on_progress)
    typer.echo(
        f"{done.sent:,} events sent, {done.rows_per_s:,.0f} per second. {done.left:,} are left: not due yet, "
        "claimed by other relays, or waiting for a failed event with the same key."
    )
    if done.failed:
        typer.secho(f"{done.failed:,} attempts failed; these events are retried later.", fg="yellow", err=True)
