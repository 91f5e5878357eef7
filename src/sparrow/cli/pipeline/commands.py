"""`sparrow pipeline`: the command group of data jobs and pipelines on Spark."""

from __future__ import annotations

import typer

from sparrow.cli.pipeline import declared_pipelines, environment, run
from sparrow.cli.pipeline.jobs import (
    archive,
    audit,
    compact,
    dead_letters,
    dedupe,
    forward,
    outbox,
    replay,
    restore,
    stats,
)

app = typer.Typer(
    name="pipeline",
    help="Data pipelines on Spark: archive, restore, replay, audit and more, and pipelines defined in files.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.command("list", epilog=declared_pipelines.EXAMPLES)(declared_pipelines.list_pipelines)
app.command("run", epilog=run.RUN_EXAMPLES)(run.run)
app.command("validate")(run.validate)
app.command("explain")(run.explain)
app.command("env", epilog=environment.ENV_EXAMPLES)(environment.env)
app.command("package", epilog=environment.PACKAGE_EXAMPLES)(environment.package)
app.command("warm-up")(environment.warm_up)
app.command("warm", hidden=True, deprecated=True)(environment.warm_up)
app.command("archive", epilog=archive.EXAMPLES)(archive.archive)
app.command("restore", epilog=restore.EXAMPLES)(restore.restore)
app.command("replay", epilog=replay.EXAMPLES)(replay.replay)
app.command("compact", epilog=compact.EXAMPLES)(compact.compact)
app.command("forward", epilog=forward.EXAMPLES)(forward.forward)
app.command("dedupe", epilog=dedupe.EXAMPLES)(dedupe.dedupe)
app.command("deadletters", epilog=dead_letters.EXAMPLES)(dead_letters.dead_letters)
app.command("outbox", epilog=outbox.EXAMPLES)(outbox.outbox)
app.command("stats", epilog=stats.EXAMPLES)(stats.stats)
app.command("audit", epilog=audit.EXAMPLES)(audit.audit)
