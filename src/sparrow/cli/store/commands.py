"""`sparrow store`: inspect, check and copy stores. Directories may be Sparrow's or RocketMQ's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sparrow.cli.store import check, copy
from sparrow.cli.store.location import find_log_directory
from sparrow.model.queue import Queue
from sparrow.store.log import LogStore

app = typer.Typer(help="Inspect, check and copy stores.", no_args_is_help=True)
app.command("check")(check.check)
app.command("skip-ids")(check.skip)
app.command("skip", hidden=True)(check.skip)
app.command("copy", epilog=copy.EXAMPLES)(copy.copy)


@app.command()
def info(
    directory: Annotated[Path, typer.Argument(help="Directory of a store.", exists=True, file_okay=False)],
) -> None:
    """List the topics, queues and groups of a store. Opening a store repairs it if necessary.

    Example: [bold]sparrow store info ./sparrow-data[/bold]
    """
    with LogStore(find_log_directory(directory)) as store:
        console = Console()
        console.print(f"log: bytes {store.first:,} to {store.written:,}")
        console.print(_disk_usage(store.path))
        for damage in store.damage:
            console.print(f"[red]damaged: bytes {damage.start:,} to {damage.end:,} are skipped[/red]")
        console.print(asyncio.run(_topics(store)))


def _disk_usage(directory: Path) -> str:
    """Return what the files take on disk, and whether the newest one of the log is allocated in advance."""
    files = {path: path.stat() for path in directory.rglob("*") if path.is_file()}
    taken, size = sum(512 * stat.st_blocks for stat in files.values()), sum(stat.st_size for stat in files.values())
    text = f"disk: {taken / 1e6:,.1f} MB taken by files of {size / 1e6:,.1f} MB"
    newest = max((path for path in files if path.parent.name == "commitlog"), default=None)
    if newest is None:
        return text
    is_whole = 512 * files[newest].st_blocks >= files[newest].st_size
    return f"{text}; the newest log file is allocated {'completely (preallocate)' if is_whole else 'as it fills'}"


async def _topics(store: LogStore) -> Table:
    table = Table("topic", "queue", "first", "end", "committed by")
    for name, topic in sorted((await store.catalog.list_topics()).items()):
        for number in range(max(topic.read_queues, topic.write_queues)):
            queue = Queue(name, number)
            first, end = await store.bounds(queue)
            if not end:
                continue
            groups = [
                f"{group} {offset:,}"
                for group in sorted(await store.catalog.list_groups())
                if (offset := await store.offsets.committed(group, queue)) is not None
            ]
            table.add_row(name, str(number), f"{first:,}", f"{end:,}", ", ".join(groups))
    return table
