"""`ReplicaMetrics`: the metrics of a replica, and those of its broker while it leads."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from sparrow.broker.context import Broker
from sparrow.broker.metrics.collector import BrokerMetrics
from sparrow.model.health import Finding, Health
from sparrow.replication.server import ReplicaServer
from sparrow.settings import TelemetrySettings
from sparrow.telemetry.metric import Family, single
from sparrow.telemetry.metrics import broker as metrics


class ReplicaMetrics:
    """The metrics of one replica. Each time it begins to lead, its broker is measured from the next scrape on."""

    def __init__(self, server: ReplicaServer, settings: TelemetrySettings) -> None:
        self._server, self._settings = server, settings
        self._broker: Broker | None = None
        self._broker_metrics: BrokerMetrics | None = None
        own = server.settings
        self._node_labels = {"cluster": own.cluster, "node_type": "broker", "node_id": own.name}

    @property
    def metrics(self) -> ReplicaMetrics:
        """The source of the metrics: this object."""
        return self

    def health(self) -> Health:
        """Return whether this replica leads or follows a leader that it knows."""
        node = self._server.node
        if node.replica.leader is not None or node.replica.follower is not None:
            now = datetime.now(UTC)
            return Health(True, tuple(Finding("copy_differs", text, now) for text in node.copy_check.differences))
        text = "this replica knows no leader: see `sparrow cluster status`, and start more replicas of its set"
        return Health(False, (Finding("no_leader", text, datetime.now(UTC)),))

    async def prepare(self) -> None:
        """Measure the broker that runs now."""
        # A follower's broker is not measured: it would report the lag of the same groups once more.
        broker = self._server.broker
        if broker is not None and broker.is_follower:
            broker = None
        if self._broker is broker:
            return
        await self.stop()
        self._broker, serving = broker, self._server._roles._serving
        if broker is not None and serving is not None:
            self._broker_metrics = BrokerMetrics(
                broker, serving, self._server._listener, self._settings, reports_leader=False
            )
            self._broker_metrics.start()

    async def stop(self) -> None:
        """Stop to measure the broker."""
        if self._broker_metrics is not None:
            await self._broker_metrics.stop()
            self._broker_metrics = None

    def families(self) -> Iterator[Family]:
        """Yield the metrics."""
        labels = self._node_labels | {"replica": str(self._server.node.options.replica_id)}
        replica = self._server.node.replica
        yield single(metrics.IS_LEADER, int(self._server.node.is_leading), labels)
        yield single(metrics.LEADER_EPOCH, replica.heard_epoch, labels)
        state = replica.snapshot.state if replica.snapshot is not None else None
        if state is not None:
            yield single(metrics.IN_SYNC_REPLICAS, len(state.in_sync), labels)
            yield single(metrics.REPLICAS, len(state.members), labels)
        position = replica.log
        yield single(metrics.REPLICATION_LAG, max(0, position.end - position.high_watermark), labels)
        if self._broker_metrics is not None:
            yield from self._broker_metrics.families()
            return
        listener = self._server._listener
        yield Family(metrics.LIMITS_HIT, [((name,), count) for name, count in listener.limits_hit().items()], labels)
        yield Family(metrics.ACCESS_REFUSALS, listener.access_refusals(), labels)
