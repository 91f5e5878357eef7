"""Arguments that several pipelines have in common, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sparrow.spark.jobs.time_span import JobTimeSpan

if TYPE_CHECKING:
    from sparrow.spark.jobs.copy.message_copy import CopyResult
    from sparrow.spark.jobs.copy.selection import MessageSelection

SinceOption = Annotated[str | None, typer.Option(help="Stored from then on: ISO time, ms since 1970, or -24h.")]
UntilOption = Annotated[str | None, typer.Option(help="Stored before then.")]
QueueOption = Annotated[int | None, typer.Option(help="Only this queue.", min=0)]
OffsetsOption = Annotated[
    tuple[int, int] | None, typer.Option(help="First and last queue offset, both included.", metavar="FIRST LAST")
]
KeysOption = Annotated[str | None, typer.Option(help="Only messages with one of these keys or ids, ',' between them.")]
KeysFileOption = Annotated[
    Path | None, typer.Option(help="The same from a file, a key a line.", exists=True, dir_okay=False)
]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Only count.")]


def parse_selection(
    topics: list[str] | None,
    *,
    since: str | None,
    until: str | None,
    queue: int | None,
    offsets: tuple[int, int] | None,
    keys: str | None,
    keys_file: Path | None,
) -> MessageSelection:
    from sparrow.spark.jobs.copy.selection import MessageSelection

    span = JobTimeSpan.parse(since, until)
    words = (keys or "").split(",") + (keys_file.read_text().splitlines() if keys_file is not None else [])
    wanted = tuple(dict.fromkeys(word.strip() for word in words if word.strip()))
    if (keys is not None or keys_file is not None) and not wanted:
        raise typer.BadParameter("there are no keys in --keys or --keys-file")
    return MessageSelection(
        topics=tuple(topics or ()),
        from_ms=span.since_ms,
        to_ms=span.until_ms,
        queue_id=queue,
        offsets=offsets,
        keys=wanted,
    )


def pluralize(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def copy_summary(copied: CopyResult, done: str, where: str, *, dry_run: bool) -> str:
    """What a copying job did, queue by queue where it only counted."""
    if copied.was_done:
        return f"Nothing written: this was {done} to {where} before. To do it once more, give it another name."
    if not dry_run:
        return f"{pluralize(copied.written, 'message')} {done} to {where}."
    lines = [
        f"{count.queue.topic}/{count.queue.broker_name}/{count.queue.queue_id}: "
        f"{pluralize(count.rows, 'message')}, offsets {count.first} to {count.last}"
        for count in copied.counts
    ]
    return "\n".join([*lines, f"{pluralize(copied.rows, 'message')} would be {done} to {where}."])
