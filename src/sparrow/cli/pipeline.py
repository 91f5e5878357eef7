"""`sparrow pipeline`: data work that runs on Spark, a verb a job."""

from __future__ import annotations

import typer

from sparrow.cli import (
    pipeline_archive,
    pipeline_audit,
    pipeline_compact,
    pipeline_deadletters,
    pipeline_dedupe,
    pipeline_forward,
    pipeline_outbox,
    pipeline_replay,
    pipeline_restore,
    pipeline_run,
    pipeline_stats,
)

app = typer.Typer(
    name="pipeline",
    help="Data pipelines on Spark: archive, restore, replay, audit and more, and pipelines declared in files.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
app.command("run", epilog=pipeline_run.RUN_EXAMPLES)(pipeline_run.run)
app.command("validate")(pipeline_run.validate)
app.command("explain")(pipeline_run.explain)
app.command("package", epilog=pipeline_run.PACKAGE_EXAMPLES)(pipeline_run.package)
app.command("warm")(pipeline_run.warm)
app.command("archive", epilog=pipeline_archive.EXAMPLES)(pipeline_archive.archive)
app.command("restore", epilog=pipeline_restore.EXAMPLES)(pipeline_restore.restore)
app.command("replay", epilog=pipeline_replay.EXAMPLES)(pipeline_replay.replay)
app.command("compact", epilog=pipeline_compact.EXAMPLES)(pipeline_compact.compact)
app.command("forward", epilog=pipeline_forward.EXAMPLES)(pipeline_forward.forward)
app.command("dedupe", epilog=pipeline_dedupe.EXAMPLES)(pipeline_dedupe.dedupe)
app.command("deadletters", epilog=pipeline_deadletters.EXAMPLES)(pipeline_deadletters.deadletters)
app.command("outbox", epilog=pipeline_outbox.EXAMPLES)(pipeline_outbox.outbox)
app.command("stats", epilog=pipeline_stats.EXAMPLES)(pipeline_stats.stats)
app.command("audit", epilog=pipeline_audit.EXAMPLES)(pipeline_audit.audit)
