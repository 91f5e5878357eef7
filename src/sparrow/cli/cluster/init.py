"""`sparrow cluster init`: create a replica set, of empty brokers or of one that has data."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from sparrow.cli.cluster.connection import EtcdOption, NameOption, open_set, set_settings
from sparrow.model.errors import SettingsError
from sparrow.replication.core.member_changes import majority
from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.founder import FoundingReplica, prepare_founder, undo_founder
from sparrow.replication.identity import make_incarnation
from sparrow.settings import Settings

EXAMPLES = (
    "Examples: [bold]sparrow cluster init --members 1,2,3 --etcd http://etcd-1:2379[/bold]   "
    "A broker that has data becomes replica 1, the others copy it: "
    "[bold]sparrow cluster init --members 1,2,3 --from-data ./sparrow-data --replica 1[/bold]"
)


def init(
    members: Annotated[str, typer.Option(help="Numbers of the replicas, separated by commas.")] = "1,2,3",
    min_in_sync: Annotated[
        int | None, typer.Option("--min", help="Replicas that must have a message; default: more than half.", min=1)
    ] = None,
    from_data: Annotated[
        Path | None,
        typer.Option(
            help="Data folder of a stopped broker, or of a replica whose etcd is lost: its log is the set's.",
            exists=True,
            file_okay=False,
        ),
    ] = None,
    replica: Annotated[
        int | None, typer.Option(help="Number of the replica with --from-data; default: the first.", min=1, max=64)
    ] = None,
    name: NameOption = None,
    etcd: EtcdOption = None,
) -> None:
    """Create a replica set, once, before its first replica starts."""
    numbers = parse_members(members)
    needed = min_in_sync if min_in_sync is not None else majority(len(numbers))
    if needed > len(numbers):
        raise SettingsError("--min", needed, "the command line", f"at most {len(numbers)}, the number of replicas")
    if replica is not None and (from_data is None or replica not in numbers):
        raise SettingsError("--replica", replica, "the command line", f"--from-data, and one of {members}")
    settings = set_settings(name, etcd)
    founder = None
    if from_data is not None:
        founder = prepare_founder(from_data / "store", replica or numbers[0], settings.log)
    state = ReplicaSetState(
        set_id=founder.identity.set_id if founder is not None else make_incarnation(),
        members=numbers,
        min_in_sync=needed,
        min_is_set=min_in_sync is not None,
        epoch=founder.epoch if founder is not None else 0,
        in_sync=_first_in_sync(numbers, founder),
    )
    try:
        asyncio.run(_initialise(settings, state))
    except BaseException:
        if founder is not None:
            undo_founder(founder)
        raise
    broker, cluster = settings.broker.name, settings.broker.cluster
    typer.echo(f"Created replica set {broker!r} of cluster {cluster!r}: replicas {members}, {needed} must be in sync.")
    if founder is not None:
        typer.echo(
            f"Replica {founder.identity.replica_id} keeps the {founder.end - founder.first:,} bytes of its log; start "
            "it with the same --data. The others copy it and take sends once enough of them have."
        )
    typer.echo(f"Start each replica: sparrow broker --name {broker} --replica {numbers[0]} --etcd … --data …")


def _first_in_sync(numbers: tuple[int, ...], founder: FoundingReplica | None) -> dict[int, str]:
    if founder is None:
        return {number: make_incarnation() for number in numbers}
    return {founder.identity.replica_id: founder.identity.incarnation}


async def _initialise(settings: Settings, state: ReplicaSetState) -> None:
    async with open_set(settings) as replica_set:
        await replica_set.coordinator.initialise(state)


def parse_members(text: str) -> tuple[int, ...]:
    """Return the numbers in a text such as `1,2,3`, in order."""
    try:
        numbers = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError as cause:
        raise SettingsError("--members", text, "the command line", "numbers separated by commas: 1,2,3") from cause
    if not numbers or numbers[0] < 1 or numbers[-1] > 64:
        raise SettingsError("--members", text, "the command line", "numbers from 1 to 64")
    return numbers
