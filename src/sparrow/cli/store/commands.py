"""`sparrow store`: inspect, check and copy stores. Directories may be Sparrow's or RocketMQ's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from sparrow.cli.output import JsonOption, print_json, print_table
from sparrow.cli.store import check, copy
from sparrow.cli.store.location import find_log_directory
from sparrow.model.queue import Queue
from sparrow.store.log import LogStore

app = typer.Typer(help="Inspect, check and copy stores.", no_args_is_help=True)
app.command("check")(check.check)
app.command("skip-ids")(check.skip)
app.command("skip", hidden=True)(check.skip)
app.command("copy", epilog=copy.EXAMPLES)(copy.copy)


class QueueContent(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that holds messages, and the groups that have committed offsets on it."""

    topic: str
    queue_id: int
    first: int
    end: int
    committed: dict[str, int]
    """Group to the offset that it reads next."""


class StoreContent(msgspec.Struct, frozen=True, kw_only=True):
    """What `sparrow store info` shows."""

    path: str
    log_first: int
    """The first physical offset of the log."""
    log_end: int
    leader_epoch: int | None
    """The last epoch of a leader, in the log of a replica."""
    disk_bytes: int
    """What the files take on disk."""
    file_bytes: int
    """How large the files are, with parts that take nothing."""
    is_preallocated: bool | None
    """Whether the newest log file is allocated completely; None without a log file."""
    damaged: list[tuple[int, int]]
    """Ranges of bytes that are damaged and skipped."""
    queues: list[QueueContent]


@app.command()
def info(
    directory: Annotated[Path, typer.Argument(help="Directory of a store.", exists=True, file_okay=False)],
    as_json: JsonOption = False,
) -> None:
    """List the topics, queues and groups of a store. Opening a store repairs it if necessary.

    Example: [bold]sparrow store info ./sparrow-data[/bold]
    """
    with LogStore(find_log_directory(directory)) as store:
        found = asyncio.run(_read_content(store))
    if as_json:
        print_json(found)
        return
    typer.echo(f"log: bytes {found.log_first:,} to {found.log_end:,}")
    if found.leader_epoch is not None:
        typer.echo(f"replica: the last leader epoch is {found.leader_epoch:,}")
    allocated = "completely (preallocate)" if found.is_preallocated else "as it fills"
    newest = "" if found.is_preallocated is None else f"; the newest log file is allocated {allocated}"
    typer.echo(f"disk: {found.disk_bytes / 1e6:,.1f} MB taken by files of {found.file_bytes / 1e6:,.1f} MB{newest}")
    for start, end in found.damaged:
        typer.secho(f"damaged: bytes {start:,} to {end:,} are skipped", fg=typer.colors.RED)
    rows = [
        (
            queue.topic,
            queue.queue_id,
            queue.first,
            queue.end,
            ", ".join(f"{group} {offset:,}" for group, offset in queue.committed.items()),
        )
        for queue in found.queues
    ]
    print_table(("topic", "queue", "first", "end", "committed by"), rows)


async def _read_content(store: LogStore) -> StoreContent:
    files = {path: path.stat() for path in store.path.rglob("*") if path.is_file()}
    newest = max((path for path in files if path.parent.name == "commitlog"), default=None)
    return StoreContent(
        path=str(store.path),
        log_first=store.first,
        log_end=store.written,
        leader_epoch=store.replica.epochs[-1][0] if store.replica.epochs else None,
        disk_bytes=sum(512 * stat.st_blocks for stat in files.values()),
        file_bytes=sum(stat.st_size for stat in files.values()),
        is_preallocated=None if newest is None else 512 * files[newest].st_blocks >= files[newest].st_size,
        damaged=[(damage.start, damage.end) for damage in store.damage],
        queues=[queue async for queue in _queues(store)],
    )


async def _queues(store: LogStore) -> AsyncIterator[QueueContent]:
    groups = sorted(await store.catalog.list_groups())
    for name, topic in sorted((await store.catalog.list_topics()).items()):
        for number in range(max(topic.read_queues, topic.write_queues)):
            queue = Queue(name, number)
            first, end = await store.bounds(queue)
            if end:
                offsets = {group: await store.offsets.committed(group, queue) for group in groups}
                committed = {group: int(offset) for group, offset in offsets.items() if offset is not None}
                yield QueueContent(topic=name, queue_id=number, first=first, end=end, committed=committed)
