"""Replica sets: whether etcd answers, and whether the set has a leader and enough replicas in sync."""

from __future__ import annotations

from sparrow.cli.doctor.report import CheckResult, problem, warning
from sparrow.model.errors import MissingExtra, SparrowError
from sparrow.replication.core.snapshot import Snapshot
from sparrow.settings import Settings

CHECK = "replica set"


async def check_replica_set(loaded: Settings) -> CheckResult | None:
    """Check the replica set of the settings; None if they name no etcd."""
    if not loaded.replication.etcd:
        return None
    subject = f"replica set {loaded.broker.name}"
    try:
        snapshot = await _read(loaded)
    except MissingExtra:
        return None  # the check of packages says it
    except SparrowError as error:
        found = problem(
            "etcd",
            f"etcd {loaded.replication.etcd}",
            f"it cannot be asked: {error}",
            "Start etcd, or correct replication.etcd: without it no replica can become leader.",
        )
        return CheckResult(check=CHECK, seen="etcd does not answer", diagnoses=(found,))
    return check_snapshot(subject, snapshot)


def check_snapshot(subject: str, snapshot: Snapshot | None) -> CheckResult:
    """Check what etcd holds about the set."""
    if snapshot is None:
        text, remedy = "it is not initialised", "Create it once with `sparrow cluster init`."
        return CheckResult(check=CHECK, seen="none", diagnoses=(problem("replica_set", subject, text, remedy),))
    state, found = snapshot.state, []
    if snapshot.leader is None:
        text = f"it has no leader; replicas {', '.join(map(str, sorted(state.in_sync)))} are in sync"
        found.append(
            problem("no_leader", subject, text, "Start a replica that is in sync: `sparrow broker --replica …`.")
        )
    if len(state.in_sync) < state.min_in_sync:
        text = f"{len(state.in_sync)} replicas are in sync, and {state.min_in_sync} must be: sends are refused"
        found.append(problem("in_sync", subject, text, "Start the other replicas."))
    elif len(state.in_sync) < len(state.members):
        text = f"{len(state.in_sync)} of {len(state.members)} replicas are in sync"
        found.append(warning("in_sync", subject, text, "Start the others, or look at their logs."))
    seen = f"epoch {state.epoch}, {len(state.in_sync)} of {len(state.members)} in sync"
    return CheckResult(check=CHECK, seen=seen, diagnoses=tuple(found))


async def _read(loaded: Settings) -> Snapshot | None:
    from sparrow.extras import require

    require("httpx", extra="etcd", for_="replication.etcd")
    from sparrow.replication.etcd.coordinator import EtcdCoordinator
    from sparrow.replication.etcd.gateway import EtcdGateway, parse_endpoints

    gateway = EtcdGateway(parse_endpoints(loaded.replication.etcd))
    try:
        return await EtcdCoordinator(gateway, loaded.broker.cluster, loaded.broker.name, 0).read()
    finally:
        await gateway.close()
