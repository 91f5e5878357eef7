"""Routes of clusters and brokers."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path

from sparrow.console.context import ClusterDependency, ContextDependency
from sparrow.console.models.clusters import (
    BrokerDetailAnswer,
    BrokerSettingsAnswer,
    ClusterAnswer,
    ServedClusterAnswer,
)
from sparrow.operations.clusters import BrokerState, ClusterState, fetch_broker, fetch_broker_settings, fetch_cluster

router = APIRouter(tags=["cluster"])

BrokerPath = Annotated[str, Path(min_length=1, max_length=127, description="Broker name.", examples=["sparrow"])]


@router.get("/clusters", response_model=list[ServedClusterAnswer])
async def list_clusters(context: ContextDependency) -> list[dict[str, Any]]:
    """List the clusters that this console serves. Other routes take their names as `cluster`."""
    return [
        {
            "name": cluster.name,
            "name_servers": cluster.name_servers,
            "is_default": at == 0,
            "is_reachable": cluster.sampler.error is None,
            "error": cluster.sampler.error,
        }
        for at, cluster in enumerate(context.clusters.values())
    ]


@router.get("/cluster", response_model=ClusterAnswer)
async def get_cluster(cluster: ClusterDependency) -> ClusterState:
    """Return the brokers and name servers, with figures of this moment."""
    return await fetch_cluster(cluster.admin)


@router.get("/brokers/{broker}", response_model=BrokerDetailAnswer)
async def get_broker(broker: BrokerPath, cluster: ClusterDependency) -> BrokerState:
    """Return a broker with all its runtime figures."""
    return await fetch_broker(cluster.admin, broker)


@router.get("/brokers/{broker}/settings", response_model=BrokerSettingsAnswer)
async def get_broker_settings(broker: BrokerPath, cluster: ClusterDependency) -> dict[str, Any]:
    """Return the settings of a broker."""
    return {"broker": broker, "settings": await fetch_broker_settings(cluster.admin, broker)}
