"""`sparrow cluster add`, `remove`, `min` and `accept-loss`: change who belongs to a set and what it tolerates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated

import typer

from sparrow.cli.cluster.connection import EtcdOption, NameOption, ReplicaSet, open_set, set_settings
from sparrow.model.errors import Refused, SettingsError, SparrowError, Unavailable
from sparrow.replication.coordinator import CallOutcome
from sparrow.replication.core import member_changes
from sparrow.replication.core.membership import ReplicaSetState
from sparrow.replication.core.snapshot import Snapshot
from sparrow.replication.identity import make_incarnation
from sparrow.settings import Settings

ADD_EXAMPLES = "Example: [bold]sparrow cluster add 4 --etcd http://etcd-1:2379[/bold]"
REMOVE_EXAMPLES = "Example: [bold]sparrow cluster remove 3 --etcd http://etcd-1:2379[/bold]"
MIN_EXAMPLES = (
    "Examples: [bold]sparrow cluster min 1[/bold] (go on with one replica)   [bold]sparrow cluster min majority[/bold]"
)
LOSS_EXAMPLES = "Example: [bold]sparrow cluster accept-loss --replica 2 --yes[/bold]"

_ATTEMPTS = 10
ReplicaArgument = Annotated[int, typer.Argument(help="Number of the replica.", min=1, max=64)]
ForceOption = Annotated[bool, typer.Option("--force", help="Do it although the set then refuses sends.")]


def add(replica: ReplicaArgument, force: ForceOption = False, name: NameOption = None, etcd: EtcdOption = None) -> None:
    """Add one replica to a set. Start it afterwards: it copies the log and joins.

    How many replicas must be in sync follows the number of replicas, unless it was set.
    """
    settings = set_settings(name, etcd)
    state = asyncio.run(_change(settings, lambda read, id_: member_changes.add_member(read, replica, id_), force=force))
    _print_members(f"Added replica {replica}", state)
    typer.echo(f"Start it: sparrow broker --name {settings.broker.name} --replica {replica} --etcd … --data …")


def remove(
    replica: ReplicaArgument, force: ForceOption = False, name: NameOption = None, etcd: EtcdOption = None
) -> None:
    """Remove one replica from a set. Stop its process before or afterwards; its data is not touched.

    A leader is not removed: transfer the leadership first.
    """
    settings = set_settings(name, etcd)
    state = asyncio.run(
        _change(settings, lambda read, id_: member_changes.remove_member(read, replica, id_), force=force)
    )
    _print_members(f"Removed replica {replica}", state)


def change_min(
    needed: Annotated[str, typer.Argument(help="A number, or `majority`: more than half, which follows the members.")],
    force: ForceOption = False,
    name: NameOption = None,
    etcd: EtcdOption = None,
) -> None:
    """Change how many replicas must have a message before it is acknowledged."""
    if needed != "majority" and not needed.isdecimal():
        raise SettingsError("NEEDED", needed, "the command line", "a number, or majority")
    number = None if needed == "majority" else int(needed)
    settings = set_settings(name, etcd)
    state = asyncio.run(_change(settings, lambda read, id_: member_changes.set_min(read, number, id_), force=force))
    _print_members("Changed the set", state)


def accept_loss(
    replica: Annotated[int, typer.Option(help="The running replica that shall lead.", min=1, max=64)],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    name: NameOption = None,
    etcd: EtcdOption = None,
) -> None:
    """Let a replica lead that may lack acknowledged messages, because no other one is left. The last resort.

    The other replicas cut what it does not have. Choose the one with the highest epoch and, of those, the highest end,
    as `sparrow cluster status` shows them.
    """
    settings = set_settings(name, etcd)
    if not yes:
        typer.confirm(f"Acknowledged messages that replica {replica} lacks are lost for good. Go on?", abort=True)
    asyncio.run(_accept_loss(settings, replica))
    typer.echo(f"Replica {replica} may lead now.")


def _print_members(what: str, state: ReplicaSetState) -> None:
    members = ", ".join(map(str, state.members))
    typer.echo(f"{what}: its replicas are {members}; {state.min_in_sync} must be in sync, {len(state.in_sync)} are.")


async def _change(
    settings: Settings, change: Callable[[ReplicaSetState, str], ReplicaSetState], *, force: bool
) -> ReplicaSetState:
    async with open_set(settings) as replica_set:
        for _ in range(_ATTEMPTS):
            snapshot = await replica_set.read()
            changed = change(snapshot.state, make_incarnation())
            _check_availability(snapshot, changed, force=force)
            if await _write(replica_set, changed, snapshot):
                return changed
    raise Unavailable("the set changed while the command ran: run it again")


def _check_availability(snapshot: Snapshot, changed: ReplicaSetState, *, force: bool) -> None:
    state = snapshot.state
    if state.eligible and not changed.eligible and snapshot.leader is None:
        raise Refused(
            "nobody leads, and the change would make replicas ineligible that have every message: start one of "
            f"{', '.join(map(str, sorted(state.eligible)))}, and wait until it leads"
        )
    was_enough = len(state.in_sync) >= state.min_in_sync
    if was_enough and len(changed.in_sync) < changed.min_in_sync and not force:
        raise Refused(
            f"{changed.min_in_sync} replicas would have to be in sync, and {len(changed.in_sync)} would be: "
            "sends would be refused. Start the others first, or use --force"
        )


async def _write(replica_set: ReplicaSet, changed: ReplicaSetState, snapshot: Snapshot) -> bool:
    """Write a change; return False if somebody else was first. After a lost answer, look whether it was applied."""
    outcome = await replica_set.coordinator.operate(changed, snapshot.state_revision)
    if outcome is CallOutcome.UNKNOWN:
        now = await replica_set.read()
        return now.state.change_id == changed.change_id
    return outcome is CallOutcome.APPLIED


async def _accept_loss(settings: Settings, replica: int) -> None:
    async with open_set(settings) as replica_set:
        snapshot = await replica_set.read()
        if snapshot.leader is not None:
            raise Refused(f"replica {snapshot.leader.replica_id} leads: nothing needs to be lost")
        statuses = await replica_set.statuses(snapshot)
        chosen = statuses.get(replica)
        if chosen is None or isinstance(chosen, SparrowError):
            raise Refused(f"replica {replica} does not answer: start it first")
        known = [status for status in statuses.values() if not isinstance(status, SparrowError)]
        changed = member_changes.accept_loss(
            snapshot.state, replica, chosen.incarnation, max(status.epoch for status in known), make_incarnation()
        )
        outcome = await replica_set.coordinator.operate(changed, snapshot.state_revision, leader_revision=0)
        if outcome is not CallOutcome.APPLIED:
            raise Unavailable("the set changed while the command ran: look at `sparrow cluster status`")
