"""Metrics and health of the replicas of a set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.etcd import EtcdServer, etcd_cluster
from tests.support.replica_servers import leader_of, replica_set
from tests.support.scrapes import Scrape, parse

from sparrow import Message, aio
from sparrow.replication.metrics import ReplicaMetrics
from sparrow.settings import TelemetrySettings
from sparrow.telemetry.exposition import metrics_text


@pytest.fixture(scope="module")
def etcd() -> Iterator[EtcdServer]:
    with etcd_cluster() as (server,):
        yield server


async def scrape_of(metrics: ReplicaMetrics) -> Scrape:
    await metrics.prepare()
    return parse(await metrics_text(metrics.families()))


async def test_one_replica_leads_and_only_its_broker_reports_messages(etcd: EtcdServer, tmp_path: Path) -> None:
    async with replica_set(etcd, tmp_path) as (name_servers, servers):
        leader = await leader_of(servers)
        all_metrics = {server: ReplicaMetrics(server, TelemetrySettings()) for server in servers}
        for metrics in all_metrics.values():
            await metrics.prepare()
        async with aio.Producer(name_servers) as producer:
            await producer.send(Message("orders", b"x"))
        scrapes = {server: await scrape_of(metrics) for server, metrics in all_metrics.items()}
        assert sum(found.value("sparrow_is_leader") or 0 for found in scrapes.values()) == 1
        assert scrapes[leader].value("sparrow_is_leader") == 1
        for server, found in scrapes.items():
            assert found.value("sparrow_replicas") == len(servers)
            assert found.value("sparrow_in_sync_replicas") >= 2
            assert found.value("sparrow_leader_epoch") >= 1
            assert found.value("sparrow_replication_lag_bytes") is not None
            assert all_metrics[server].health().ok
            assert found.value("rocketmq_messages_in_total", topic="orders") == (1 if server is leader else None)
        for metrics in all_metrics.values():
            await metrics.stop()
