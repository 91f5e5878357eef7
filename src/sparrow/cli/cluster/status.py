"""`sparrow cluster status`: the leader, the in-sync set, and how far each replica is."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sparrow.cli.cluster.connection import EtcdOption, NameOption, ReplicaSet, open_set, set_settings
from sparrow.cli.output import JsonOption, print_json
from sparrow.model.errors import SparrowError
from sparrow.replication.core.snapshot import Snapshot
from sparrow.settings import Settings
from sparrow.wire.bodies import ReplicaStatus

EXAMPLES = (
    "Examples: [bold]sparrow cluster status --etcd http://etcd-1:2379[/bold]   [bold]sparrow cluster status --watch"
    "[/bold]   In scripts: [bold]sparrow cluster status --check || alarm[/bold] (exit code 3: sends are refused)"
)
UNHEALTHY_EXIT_CODE = 3
Statuses = dict[int, ReplicaStatus | SparrowError]


class LeaderRow(msgspec.Struct, frozen=True):
    """The leader of a set."""

    replica_id: int
    address: str


class FollowerRow(msgspec.Struct, frozen=True, kw_only=True):
    """A follower, as its leader sees it."""

    replica_id: int
    safe_end: int
    lag_bytes: int
    lag_ms: int
    """How long ago it had everything that the leader had; 0 if it has everything now."""


class ReplicaRow(msgspec.Struct, frozen=True, kw_only=True):
    """A replica; of one that does not answer, all but `address` and `error` is null."""

    address: str | None
    """null: it is not running."""
    error: str | None
    """Why it gave no answer."""
    set_id: str | None = None
    replica_id: int | None = None
    incarnation: str | None = None
    role: str | None = None
    """leader, follower, candidate (it follows nobody), removed, or stopped (an operator must act)."""
    epoch: int | None = None
    """The highest epoch that it has heard of."""
    first: int | None = None
    """The first byte of its log."""
    end: int | None = None
    safe_end: int | None = None
    """Up to here its log is safe on its disk."""
    high_watermark: int | None = None
    """Up to here, as far as it knows, the log is committed."""
    followers: list[FollowerRow] | None = None
    """Only of a leader."""


class ReplicaSetReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `sparrow cluster status` shows. Numbers of replicas map to incarnations in `in_sync` and `eligible`."""

    set_id: str
    members: tuple[int, ...]
    min_in_sync: int
    epoch: int
    in_sync: dict[int, str]
    eligible: dict[int, str]
    change_id: str
    """A random value of the last change."""
    min_is_set: bool
    """An operator has chosen `min_in_sync`; otherwise it is more than half of the members."""
    successor: int | None
    """The replica that the last leader has handed over to."""
    is_fixed: bool
    """Roles are fixed, as with RocketMQ's master and slaves."""
    loss_accepted_epoch: int
    """An operator accepts that committed bytes of epochs before this one are lost."""
    leader: LeaderRow | None
    """null: nobody leads."""
    is_serving: bool
    """Whether the set takes sends, as far as the coordinator knows."""
    replicas: dict[int, ReplicaRow]
    """Number of a replica to what it is and has."""


_STATE_FIELDS = tuple(
    field for field in ReplicaSetReport.__struct_fields__ if field not in ("leader", "is_serving", "replicas")
)


def status(
    name: NameOption = None,
    etcd: EtcdOption = None,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Show it again every second until Ctrl-C.")] = False,
    as_json: JsonOption = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 3 if nobody leads or too few replicas are in sync.")
    ] = False,
) -> None:
    """Show the leader, the epoch, the in-sync set, and how far each replica is."""
    settings = set_settings(name, etcd)
    try:
        is_healthy = asyncio.run(_watch(settings) if watch else _show(settings, as_json=as_json))
    except KeyboardInterrupt:
        raise typer.Exit from None
    if check and not is_healthy:
        raise typer.Exit(UNHEALTHY_EXIT_CODE)


async def _show(settings: Settings, *, as_json: bool) -> bool:
    async with open_set(settings) as replica_set:
        snapshot = await replica_set.read()
        statuses = await replica_set.statuses(snapshot)
    if as_json:
        print_json(report(snapshot, statuses))
    else:
        Console().print(_render(replica_set, snapshot, statuses))
    return is_serving(snapshot)


async def _watch(settings: Settings) -> bool:
    async with open_set(settings) as replica_set:
        with Live(refresh_per_second=4) as live:
            while True:
                try:
                    snapshot = await replica_set.read()
                    live.update(_render(replica_set, snapshot, await replica_set.statuses(snapshot)))
                except SparrowError as error:
                    live.update(Text(str(error), style="red"))
                await asyncio.sleep(1)


def is_serving(snapshot: Snapshot) -> bool:
    """Return whether the set takes sends, as far as the coordinator knows."""
    return snapshot.leader is not None and len(snapshot.state.in_sync) >= snapshot.state.min_in_sync


def report(snapshot: Snapshot, statuses: Statuses) -> ReplicaSetReport:
    """Return the state and the statuses as `--json` prints them."""
    leader = snapshot.leader
    return ReplicaSetReport(
        **{name: getattr(snapshot.state, name) for name in _STATE_FIELDS},
        leader=None if leader is None else LeaderRow(leader.replica_id, leader.address),
        is_serving=is_serving(snapshot),
        replicas={
            member: _replica_row(snapshot.addresses.get(member), statuses.get(member))
            for member in snapshot.state.members
        },
    )


def _replica_row(address: str | None, found: ReplicaStatus | SparrowError | None) -> ReplicaRow:
    if not isinstance(found, ReplicaStatus):
        return ReplicaRow(address=address, error=None if found is None else str(found))
    fields = msgspec.structs.asdict(found)
    lags = [FollowerRow(**msgspec.structs.asdict(lag)) for lag in found.followers]
    return ReplicaRow(address=address, error=None, **{**fields, "followers": lags})


def _render(replica_set: ReplicaSet, snapshot: Snapshot, statuses: Statuses) -> Group:
    state, leader = snapshot.state, snapshot.leader
    leads = "nobody leads" if leader is None else f"replica {leader.replica_id} leads epoch {state.epoch}"
    lines: list[Any] = [
        Text(
            f"replica set {replica_set.name} of cluster {replica_set.cluster}: {leads}; {len(state.in_sync)} of "
            f"{len(state.members)} replicas in sync, {state.min_in_sync} needed",
            style="" if is_serving(snapshot) else "red",
        )
    ]
    table = Table("replica", "role", "in sync", "address")
    for column in ("epoch", "end", "high watermark", "lag bytes", "lag ms"):
        table.add_column(column, justify="right")
    leading = statuses.get(leader.replica_id) if leader is not None else None
    lags = {one.replica_id: one for one in leading.followers} if isinstance(leading, ReplicaStatus) else {}
    for member in state.members:
        found, is_leader = statuses.get(member), leader is not None and leader.replica_id == member
        in_sync = "yes" if member in state.in_sync else "eligible" if member in state.eligible else "no"
        address = snapshot.addresses.get(member, "")
        if not isinstance(found, ReplicaStatus):
            role = "leader, no answer" if is_leader else "no answer" if found is not None else "not running"
            table.add_row(str(member), role, in_sync, address)
            continue
        lag = lags.get(member)
        numbers = (found.epoch, found.end, found.high_watermark)
        shown_lag = ("", "") if lag is None else (f"{lag.lag_bytes:,}", f"{lag.lag_ms:,}")
        cells = (str(member), found.role, in_sync, address, *(f"{number:,}" for number in numbers), *shown_lag)
        table.add_row(*cells)
    lines.append(table)
    if leader is None:
        able = sorted({*state.in_sync, *state.eligible})
        lines.append(Text(f"To get a leader, start one of the replicas {', '.join(map(str, able))}.", style="yellow"))
    return Group(*lines)
