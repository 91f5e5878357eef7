"""`sparrow cluster verify`: compare the logs and the views of all replicas."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Annotated, NamedTuple

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from sparrow.cli.cluster.connection import EtcdOption, NameOption, ReplicaSet, open_set, set_settings
from sparrow.model.errors import Refused, SparrowError
from sparrow.replication.operations import CHECKSUM_BYTES_MAX
from sparrow.replication.replica_connection import ReplicaConnection
from sparrow.settings import Settings
from sparrow.wire.bodies import ReplicaStatus, ViewChecksum
from sparrow.wire.headers import ChecksumLog, ChecksumViews, ReplicaView

EXAMPLES = (
    "Examples: [bold]sparrow cluster verify --etcd http://etcd-1:2379[/bold]   "
    "Only those that run: [bold]sparrow cluster verify --replicas 1,2[/bold]   (exit code 3: they differ)"
)
DIFFERENT_EXIT_CODE = 3
_BLOCK_BYTES = 1 << 20
_REQUEST_BYTES = 16 << 20
_TIMEOUT_MS = 60_000
_ROUNDS = 5
"""A view that has changed between two answers is asked for again; a difference in each round is real."""
assert _REQUEST_BYTES <= CHECKSUM_BYTES_MAX


class VerifiedRange(NamedTuple):
    """What was compared."""

    replicas: list[int]
    start: int
    end: int
    differences: list[str]


def verify(
    replicas: Annotated[
        str | None, typer.Option(help="Numbers of the replicas to compare, separated by commas; default: all.")
    ] = None,
    name: NameOption = None,
    etcd: EtcdOption = None,
) -> None:
    """Compare the logs, consume queues, key index and state of all replicas, up to the high watermark that all know.

    The set may be in use. Exit with 3 if replicas differ, and name where.
    """
    chosen = None if replicas is None else {int(part) for part in replicas.split(",") if part.strip().isdecimal()}
    found = asyncio.run(_verify(set_settings(name, etcd), chosen))
    numbers = ", ".join(map(str, found.replicas))
    if found.differences:
        for difference in found.differences:
            typer.secho(difference, fg=typer.colors.RED)
        typer.echo(f"Replicas {numbers} differ between {found.start:,} and {found.end:,}.")
        raise typer.Exit(DIFFERENT_EXIT_CODE)
    typer.echo(
        f"Replicas {numbers} have the same log from {found.start:,} to {found.end:,}, and the same queues, key index "
        "and state.\nNot compared: timers, half messages and pops in flight. Only the leader has them, and makes them "
        "from the log and the state."
    )


async def _verify(settings: Settings, chosen: set[int] | None) -> VerifiedRange:
    async with open_set(settings) as replica_set, AsyncExitStack() as stack:
        statuses = await _statuses(replica_set, chosen)
        snapshot = await replica_set.read()
        connections = {
            number: await stack.enter_async_context(
                replica_set.connect(snapshot.addresses[number], timeout_ms=_TIMEOUT_MS)
            )
            for number in statuses
        }
        start = max(status.first for status in statuses.values())
        end = min(status.high_watermark for status in statuses.values())
        if end < start:
            raise Refused("the replicas have no part of the log in common yet: wait until they have caught up")
        comparison = ReplicaComparison(snapshot.state.set_id, connections)
        differences = await comparison.compare_logs(start, end)
        for view in _VIEWS:
            differences += await comparison.compare_view(view, start, end)
    return VerifiedRange(sorted(statuses), start, end, differences)


_VIEWS: dict[ReplicaView, str] = {"queues": "queue", "keys": "key index, part", "state": "state"}
"""What is compared beside the log, and how a difference begins."""


async def _statuses(replica_set: ReplicaSet, chosen: set[int] | None) -> dict[int, ReplicaStatus]:
    snapshot = await replica_set.read()
    wanted = set(snapshot.state.members) if chosen is None else chosen
    found = await replica_set.statuses(snapshot)
    answered = {
        number: status
        for number, status in found.items()
        if number in wanted and not isinstance(status, SparrowError) and status.set_id == snapshot.state.set_id
    }
    if missing := sorted(wanted - answered.keys()):
        raise Refused(
            f"replica {missing[0]} does not answer: start it, or compare the others with --replicas "
            f"{','.join(map(str, sorted(answered)))}"
        )
    if len(answered) < 2:
        raise Refused("there is one replica, and nothing to compare it with")
    return answered


class ReplicaComparison:
    """Compares replicas with the first of them."""

    def __init__(self, set_id: str, connections: dict[int, ReplicaConnection]) -> None:
        self._set_id, self._connections = set_id, connections
        self._first = min(connections)

    async def compare_logs(self, start: int, end: int) -> list[str]:
        """Compare the bytes of the logs, with a progress bar."""
        columns = (
            *(TextColumn("comparing logs"), BarColumn(), DownloadColumn()),
            *(TransferSpeedColumn(), TimeRemainingColumn()),
        )
        differences: list[str] = []
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            work = bar.add_task("", total=end - start)
            for offset in range(start, end, _REQUEST_BYTES):
                until = min(offset + _REQUEST_BYTES, end)
                differences += await self._compare_part(offset, until, _BLOCK_BYTES)
                bar.update(work, completed=until - start)
        return differences

    async def _compare_part(self, start: int, end: int, block_bytes: int) -> list[str]:
        found = await self._all_log_checksums(start, end, block_bytes)
        differences = []
        for number, blocks in found.items():
            for position, (block, expected) in enumerate(zip(blocks, found[self._first], strict=True)):
                if block != expected:
                    at = await self._first_difference(number, start + position * block_bytes, end, block_bytes)
                    differences.append(f"log: replica {number} differs from replica {self._first} at byte {at:,}")
                    break
        return differences

    async def _first_difference(self, number: int, start: int, end: int, block_bytes: int) -> int:
        """Return the first byte of a block that differs, by halving."""
        length = min(block_bytes, end - start)
        while length > 1:
            half = length // 2
            found = await self._all_log_checksums(start, start + half, half)
            if found[number] == found[self._first]:
                start, half = start + half, length - half
            length = half
        return start

    async def _all_log_checksums(self, start: int, end: int, block_bytes: int) -> dict[int, list[int]]:
        request = ChecksumLog(self._set_id, start, end, block_bytes)
        answers = await asyncio.gather(*(one.log_checksums(request) for one in self._connections.values()))
        return dict(zip(self._connections, answers, strict=True))

    async def compare_view(self, view: ReplicaView, start: int, end: int) -> list[str]:
        """Compare a view. What has changed while the replicas were asked is asked for again."""
        differences: set[str] = set()
        for turn in range(_ROUNDS):
            found = await self._all_view_checksums(view, start, end)
            seen = {text for number in found for text in self._differences(view, number, found, end)}
            differences = seen if turn == 0 else differences & seen
            if not differences:
                break
            await asyncio.sleep(0.2)
        return sorted(differences)

    async def _all_view_checksums(self, view: ReplicaView, start: int, end: int) -> dict[int, dict[str, ViewChecksum]]:
        def request(after: str) -> ChecksumViews:
            return ChecksumViews(self._set_id, view, start, end, after)

        answers = await asyncio.gather(*(one.view_checksums(request) for one in self._connections.values()))
        return dict(zip(self._connections, answers, strict=True))

    def _differences(
        self, view: ReplicaView, number: int, found: dict[int, dict[str, ViewChecksum]], end: int
    ) -> list[str]:
        expected, given = found[self._first], found[number]
        differences = []
        for name in sorted({*expected, *given}):
            ours, theirs = expected.get(name), given.get(name)
            if ours == theirs or any(one is not None and not _is_settled(one, end) for one in (ours, theirs)):
                continue
            if (ours is None or theirs is None) and view == "queues" and (ours or theirs).entries == 0:  # type: ignore[union-attr]
                continue  # a queue without messages may have no files
            differences.append(f"{_VIEWS[view]}: {name} of replica {number} differs from that of replica {self._first}")
        return differences


def _is_settled(entry: ViewChecksum, end: int) -> bool:
    """Return whether an entry was made from records that all replicas have."""
    return entry.physical_offset < end
