"""`sparrow cluster transfer`: a planned hand-over of the leadership."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

import typer

from sparrow.cli.cluster.connection import EtcdOption, NameOption, open_set, set_settings
from sparrow.model.errors import Refused, Unavailable
from sparrow.settings import Settings

EXAMPLES = (
    "Examples: [bold]sparrow cluster transfer --etcd http://etcd-1:2379[/bold]   "
    "[bold]sparrow cluster transfer --to 2[/bold]"
)
_WITHIN_S = 10


def transfer(
    to: Annotated[
        int | None,
        typer.Option(help="Number of the replica that shall lead; default: the one that is furthest.", min=1, max=64),
    ] = None,
    name: NameOption = None,
    etcd: EtcdOption = None,
) -> None:
    """Let another in-sync replica lead, before a restart of the leader, for example.

    The leader takes no sends until the other replica has everything; clients repeat theirs. Nothing is lost.
    """
    settings = set_settings(name, etcd)
    former, leader, took_s = asyncio.run(_transfer(settings, to))
    typer.echo(f"Replica {leader} leads after replica {former}; the hand-over took {took_s * 1000:.0f} ms.")


async def _transfer(settings: Settings, to: int | None) -> tuple[int, int, float]:
    async with open_set(settings) as replica_set:
        snapshot = await replica_set.read()
        former = snapshot.leader
        if former is None:
            raise Refused("nobody leads: see `sparrow cluster status`")
        if to == former.replica_id:
            raise Refused(f"replica {to} leads already")
        began_s = time.perf_counter()
        async with replica_set.connect(former.address, timeout_ms=5000) as leader:
            await leader.transfer(snapshot.state.set_id, to)
        try:
            async with asyncio.timeout(_WITHIN_S):
                async for seen in replica_set.coordinator.watch():
                    if seen.leader is not None and seen.leader.create_revision != former.create_revision:
                        return former.replica_id, seen.leader.replica_id, time.perf_counter() - began_s
        except TimeoutError:
            pass
    raise Unavailable(f"replica {former.replica_id} has stepped down, and nobody leads: see `sparrow cluster status`")
