"""What a person sees while Spark works: a bar of tasks, or of messages and how many are still to come."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.text import Text

from sparrow.spark.runtime.progress import JobProgress, ProgressCallback


class _Counts(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(task.fields.get("counts", ""), style="progress.download")


@contextmanager
def show_progress(what: str) -> Iterator[ProgressCallback]:
    """A bar on the error output, as long as this lasts. Gives what a job should call when it gets further.

    Ctrl-C stops the job in order, and the command then ends without a trace of the interrupt.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), _Counts(), TimeElapsedColumn())
    try:
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            work = bar.add_task(what, total=None, counts="starting Spark")

            def on_progress(done: JobProgress) -> None:
                completed, total = bar_extent(done)
                bar.update(work, completed=completed, total=total, counts=progress_text(done))

            yield on_progress
    except KeyboardInterrupt:
        typer.echo(f"{what}: stopped; run it again and it goes on where it was", err=True)
        raise typer.Exit(130) from None


def bar_extent(done: JobProgress) -> tuple[int, int | None]:
    """How full the bar is, and of what; None: nobody knows yet."""
    if done.lag is not None:
        return done.rows, max(done.rows + done.lag, 1)
    return done.tasks, done.tasks_total or None


def progress_text(done: JobProgress) -> str:
    said = []
    if done.rows or done.lag is not None:
        said.append(f"{done.rows:,} rows")
    if done.lag:
        said.append(f"{done.lag:,} to go")
    if done.tasks_total:
        said.append(f"{done.tasks:,}/{done.tasks_total:,} tasks")
    return ", ".join(said)
