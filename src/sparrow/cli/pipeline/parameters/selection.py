"""Parameters of the commands that copy messages (`restore`, `replay`): which messages, and a summary of the result."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparrow.cli.pipeline.parameters.common import pluralize

if TYPE_CHECKING:
    from sparrow.spark.jobs.copy.message_copy import CopyResult
    from sparrow.spark.jobs.copy.selection import MessageSelection

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only count the messages.")]


@dataclass(frozen=True, kw_only=True)
class SelectionParameters:
    """Conditions on the messages to copy."""

    since: Annotated[
        str | None, typer.Option(help="Stored at this time or later: ISO time, milliseconds, or relative such as -24h.")
    ] = None
    until: Annotated[str | None, typer.Option(help="Stored before this time.")] = None
    queue: Annotated[int | None, typer.Option(help="Only this queue id.", min=0)] = None
    offsets: Annotated[
        tuple[int, int] | None, typer.Option(help="First and last queue offset, inclusive.", metavar="FIRST LAST")
    ] = None
    keys: Annotated[str | None, typer.Option(help="Only messages with one of these keys or ids, separated by ','.")] = (
        None
    )
    keys_file: Annotated[
        Path | None, typer.Option(help="File with such keys, one per line.", exists=True, dir_okay=False)
    ] = None

    def selection(self, topics: list[str] | None) -> MessageSelection:
        """Return the selection of messages of these topics."""
        from sparrow.spark.jobs.copy.selection import MessageSelection
        from sparrow.spark.jobs.time_span import JobTimeSpan

        span = JobTimeSpan.parse(self.since, self.until)
        return MessageSelection(
            topics=tuple(topics or ()),
            from_ms=span.since_ms,
            to_ms=span.until_ms,
            queue_id=self.queue,
            offsets=self.offsets,
            keys=self._all_keys(),
        )

    def _all_keys(self) -> tuple[str, ...]:
        keys = (self.keys or "").split(",")
        if self.keys_file is not None:
            keys += self.keys_file.read_text().splitlines()
        found = tuple(dict.fromkeys(key.strip() for key in keys if key.strip()))
        if (self.keys is not None or self.keys_file is not None) and not found:
            raise typer.BadParameter("no keys given", param_hint="--keys or --keys-file")
        return found


def copy_summary(copied: CopyResult, done: str, where: str, *, dry_run: bool) -> str:
    """Describe what a copy job did; for a dry run, queue by queue."""
    if copied.was_done:
        return f"Nothing written: this was {done} to {where} before. Give the job another name to run it again."
    if not dry_run:
        return f"{pluralize(copied.written, 'message')} {done} to {where}."
    lines = [
        f"{count.queue.topic}/{count.queue.broker_name}/{count.queue.queue_id}: "
        f"{pluralize(count.rows, 'message')}, offsets {count.first} to {count.last}"
        for count in copied.counts
    ]
    return "\n".join([*lines, f"{pluralize(copied.rows, 'message')} would be {done} to {where}."])
