"""Progress bar of Spark jobs: finished tasks, or messages read and messages left."""

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
    """Show a progress bar on standard error, and yield the callback that updates it.

    Ctrl-C stops the job cleanly; the command then exits without a traceback.
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
        typer.echo(f"{what}: stopped. Run the command again to continue.", err=True)
        raise typer.Exit(130) from None


def bar_extent(done: JobProgress) -> tuple[int, int | None]:
    """Return the position and the length of the bar; the length is None while unknown."""
    if done.lag is not None:
        return done.rows, max(done.rows + done.lag, 1)
    return done.tasks, done.tasks_total or None


def progress_text(done: JobProgress) -> str:
    """Return the counts as text, for the right of the bar."""
    parts = []
    if done.rows or done.lag is not None:
        parts.append(f"{done.rows:,} rows")
    if done.lag:
        parts.append(f"{done.lag:,} left")
    if done.tasks_total:
        parts.append(f"{done.tasks:,}/{done.tasks_total:,} tasks")
    return ", ".join(parts)
