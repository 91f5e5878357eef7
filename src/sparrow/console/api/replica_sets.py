"""Routes of replica sets: leaders, in-sync sets and lag, and the hand-over of a leadership."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Path, Request

from sparrow.console.api.parameters.plans import ConfirmationDependency, with_dry_run
from sparrow.console.context import ClusterDependency
from sparrow.console.models.replica_sets import HandOverAnswer, HandOverInput, ReplicaSetAnswer
from sparrow.operations import replica_sets
from sparrow.operations.replica_sets import ReplicaSetSummary

router = APIRouter(prefix="/replica-sets", tags=["replica sets"])

SetPath = Annotated[
    str, Path(min_length=1, max_length=127, description="Name of the set's brokers.", examples=["sparrow"])
]


@router.get("", response_model=list[ReplicaSetAnswer])
async def list_sets(cluster: ClusterDependency) -> list[ReplicaSetSummary]:
    """List the replica sets with their replicas; none if brokers have no replicas."""
    return await replica_sets.list_replica_sets(cluster.admin)


@router.get("/{name}", response_model=ReplicaSetAnswer)
async def get_set(name: SetPath, cluster: ClusterDependency) -> ReplicaSetSummary:
    """Return a replica set with its replicas, as they are now."""
    return await replica_sets.fetch_replica_set(cluster.admin, name)


@router.post("/{name}/transfer", response_model=HandOverAnswer)
async def transfer(
    name: SetPath,
    body: HandOverInput,
    request: Request,
    cluster: ClusterDependency,
    confirmation: ConfirmationDependency,
) -> dict[str, Any]:
    """Let another in-sync replica lead, for example before a restart of the leader. Nothing is lost.

    A dry run names the successor, and returns the hash that the hand-over has to name.
    """
    if confirmation.dry_run:
        return with_dry_run(await replica_sets.plan_hand_over(cluster.admin, name, body.to), dry_run=True)
    asked = confirmation.audited(body)
    async with cluster.audit.change(request, "replica_set.transfer", name, asked=asked) as line:
        done = await replica_sets.hand_over(
            cluster.admin, name, body.to, plan=confirmation.plan, force=confirmation.force
        )
        line.before, line.after = {"leader": done.leader}, msgspec.to_builtins(done)
        return with_dry_run(done, dry_run=False)
