"""The metrics, health and logs of live servers, on both stores."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.error import HTTPError

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from tests.support.metric_traffic import GROUP, POP_GROUP, VISIBLE, traffic
from tests.support.scrapes import Scrape, get, scrape, scrape_until

from sparrow import aio
from sparrow.bus import aio as bus_aio
from sparrow.cli.server.platform import Platform
from sparrow.settings import BrokerSettings, LogSettings, NameServerSettings, TelemetrySettings
from sparrow.telemetry.doc_tables import ALL_METRICS
from sparrow.telemetry.metrics.broker import (
    IN_SYNC_REPLICAS,
    IS_LEADER,
    LEADER_EPOCH,
    REPLICAS,
    REPLICATION_LAG,
)
from sparrow.telemetry.metrics.spark import SPARK_METRICS
from sparrow.testing.platform import SMALL_LOG_SETTINGS

ROOT = Path(__file__).parents[2]
TABLE = {metric.name: metric for metric in ALL_METRICS}


@asynccontextmanager
async def platform(folder: Path, *, on_database: bool = False, **telemetry: object) -> AsyncIterator[Platform]:
    settings = {"metrics_port": 0, "sample_interval_ms": 100, **telemetry}
    store = f"sqlite:///{folder}/store.db" if on_database else None
    async with Platform(
        folder,
        name_server=NameServerSettings(port=0),
        broker=BrokerSettings(port=0, store=store),
        log=LogSettings.model_validate(SMALL_LOG_SETTINGS),
        telemetry=TelemetrySettings.model_validate(settings),
    ) as running:
        yield running


def address_of(running: Platform) -> str:
    assert running.telemetry_server is not None
    return running.telemetry_server.address


async def scrape_of(running: Platform) -> Scrape:
    return await scrape(address_of(running))


@pytest.mark.parametrize("on_database", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["log", "sqlite"])
async def test_a_scrape_tells_what_messages_did(tmp_path: Path, on_database: bool) -> None:
    async with platform(tmp_path, on_database=on_database) as running, traffic(running.name_servers, "orders"):
        found = await scrape_until(
            address_of(running),
            lambda found: (
                found.value("rocketmq_consumer_lag_messages", consumer_group=GROUP, topic="orders") == 0
                and found.value("rocketmq_consumer_inflight_messages", consumer_group=POP_GROUP) == 1
                and found.value("rocketmq_half_messages", topic="orders") == 1
                and found.value("rocketmq_rollback_messages_total", topic="orders") == 1
                and found.value("sparrow_retry_messages_total", consumer_group=GROUP) == 2
            ),
        )
        sent = {
            kind: found.value("rocketmq_messages_in_total", topic="orders", message_type=kind)
            for kind in ("normal", "fifo", "delay", "transaction")
        }
        assert sent == {"normal": 12, "fifo": 1, "delay": 1, "transaction": 3}
        assert found.value("rocketmq_message_size_count", topic="orders", message_type="normal") == 9
        assert found.value("rocketmq_message_size_bucket", message_type="normal", le="1024.0") == 8
        assert found.value("rocketmq_messages_out_total", consumer_group=GROUP, topic="orders") == 14
        assert found.value("rocketmq_send_to_dlq_messages_total", consumer_group=GROUP, topic="orders") == 1
        assert found.value("sparrow_retry_messages_total", consumer_group=GROUP) == 2
        assert found.value("rocketmq_commit_messages_total", topic="orders") == 1
        assert found.value("rocketmq_rollback_messages_total", topic="orders") == 1
        assert found.value("rocketmq_finish_message_latency_milliseconds_count", topic="orders") == 2
        assert found.value("sparrow_delayed_messages") == 2
        assert found.value("sparrow_stored_messages", topic="orders") == VISIBLE
        assert found.value("rocketmq_producer_connections", language="python") >= 1
        assert found.value("rocketmq_consumer_connections", consumer_group=GROUP) == 1
        assert found.value("sparrow_long_polls") > 0
        sends = found.value(
            "rocketmq_rpc_latency_milliseconds_count", request_code="send_message_v2", response_code="success"
        )
        assert sends == 13
        assert found.value("rocketmq_consumer_lag_latency_milliseconds", consumer_group=POP_GROUP, topic="orders") > 0
        assert found.value("sparrow_is_leader") == 1
        assert found.value("sparrow_name_server_brokers") == 1
        assert found.value("sparrow_sample_age_seconds") < 60
        assert_in_table(found)


def assert_in_table(found: Scrape) -> None:
    """Every metric is in the table, with its type and labels."""
    for name, kind in found.types.items():
        metric = TABLE[name]
        assert kind == metric.kind, name
        assert found.labels[name] <= {*metric.labels}, name


async def test_every_metric_of_dashboard_and_alerts_is_in_a_scrape_of_live_servers(tmp_path: Path) -> None:
    bus = bus_aio.EventBus(f"sqlite:///{tmp_path}/bus.db", "memory://")
    async with platform(tmp_path) as running, traffic(running.name_servers, "orders"):
        await scrape_until(address_of(running), lambda found: found.value("rocketmq_half_messages") is not None)
        async with aio.HealthServer(bus, host="127.0.0.1", port=0) as server:
            await bus.start()
            try:
                live = {*(await scrape_of(running)).families, *(await scrape(server.address)).families}
            finally:
                await bus.stop()
    # These need replicas or Spark; tests of their own scrape them.
    elsewhere = {metric.name for metric in (*SPARK_METRICS, *_REPLICA_METRICS)}
    for file in (ROOT / "deploy" / "grafana" / "sparrow.json", ROOT / "deploy" / "prometheus" / "alerts.yml"):
        used = _metrics_in(file.read_text())
        assert len(used) >= 10, file
        assert used <= live | elsewhere, f"{file.name} uses metrics that do not exist"


_REPLICA_METRICS = (IS_LEADER, LEADER_EPOCH, IN_SYNC_REPLICAS, REPLICAS, REPLICATION_LAG)


def _metrics_in(text: str) -> set[str]:
    """Return the metrics that a file names, without the endings of a histogram's series."""
    found = set(re.findall(r"\b((?:rocketmq|sparrow|bus|process|python)_[a-z0-9_]+)", text))
    return {name if name in TABLE else re.sub(r"_(bucket|sum|count)$", "", name) for name in found}


async def test_series_of_a_deleted_topic_and_group_disappear(tmp_path: Path) -> None:
    async with platform(tmp_path) as running:
        async with traffic(running.name_servers, "orders"):
            pass
        await scrape_until(address_of(running), lambda found: found.value("rocketmq_consumer_lag_messages") is not None)
        async with aio.Admin(running.name_servers) as admin:
            await admin.delete_topic("orders")
            await admin.delete_group(GROUP)

        await scrape_until(
            address_of(running),
            lambda found: (
                not any(
                    sample.labels.get("topic") == "orders" or sample.labels.get("consumer_group") == GROUP
                    for family in found.families.values()
                    for sample in family.samples
                )
            ),
        )


async def test_topics_beyond_the_limit_are_added_up_and_counted(tmp_path: Path) -> None:
    async with platform(tmp_path, series_max=2) as running:
        async with aio.Producer(running.name_servers) as producer:
            for number in range(5):
                for _ in range(number + 1):
                    await producer.send(aio.Message(f"topic_{number}", b"x"))
        found = await scrape_of(running)
        assert found.value("rocketmq_messages_in_total", topic="topic_1") == 2
        assert found.value("rocketmq_messages_in_total", topic="topic_2") is None
        assert found.value("rocketmq_messages_in_total", topic="__other__") == 3 + 4 + 5
        assert found.value("rocketmq_messages_in_total") == 15, "nothing is lost"
        assert found.value("sparrow_metrics_folded_keys", kind="topic") == 3
        found = await scrape_until(
            address_of(running), lambda found: found.value("sparrow_stored_messages", topic="topic_1") == 2
        )
        assert found.value("sparrow_stored_messages", topic="__other__") == 3 + 4 + 5
        assert found.value("sparrow_metrics_dropped_series_total", kind="topic") == 3
        async with aio.Admin(running.name_servers) as admin:
            await admin.delete_topic("topic_4")
        assert (await scrape_of(running)).value("rocketmq_messages_in_total", topic="__other__") == 12, (
            "a counter never goes down"
        )


async def test_health_and_version_are_answered_and_other_paths_are_refused(tmp_path: Path) -> None:
    async with platform(tmp_path) as running:
        address = address_of(running)
        for path in ("/livez", "/readyz", "/healthz", "/version", "/live", "/ready"):
            assert json.loads(await asyncio.to_thread(get, address, path))
        with pytest.raises(HTTPError) as refused:
            await asyncio.to_thread(get, address, "/nothing")
        assert "/metrics" in refused.value.read().decode()
        text = await asyncio.to_thread(get, address, "/metrics", "application/openmetrics-text")
        assert text.endswith("# EOF\n")
        assert list(parse_open_metrics(text))
        await running.broker.stop()
        with pytest.raises(HTTPError) as stopping:
            await asyncio.to_thread(get, address, "/readyz")
        assert stopping.value.code == 503
        assert json.loads(stopping.value.read())["findings"][0]["cause"] == "not_serving"
        running.broker.stop = _nothing  # type: ignore[method-assign]


async def _nothing() -> None:
    pass


async def test_a_broker_that_no_name_server_knows_is_not_ready(tmp_path: Path) -> None:
    async with platform(tmp_path) as running:
        assert running.broker.health().ok
        await running.name_server.stop()
        await running.broker._registration.register()
        health = running.broker.health()
        assert not health.ok
        assert health.findings[0].cause == "name_server"
        running.name_server.stop = _nothing  # type: ignore[method-assign]


def test_programs_print_where_the_metrics_are_and_log_json(tmp_path: Path) -> None:
    command = [sys.executable, "-u", "-m", "sparrow", "broker", "--data", str(tmp_path / "data"), "--port", "0"]
    options = ["--name-servers", "127.0.0.1:1", "--metrics-port", "0", "--log-format", "json"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            lines = []
            for line in process.stdout:
                lines.append(line)
                if line.startswith("ready"):
                    break
            address = next(line for line in lines if line.startswith("metrics ")).split("//")[1].partition("/")[0]
            assert "rocketmq_topic_number" in get(address)
        finally:
            process.terminate()
            _, errors = process.communicate(timeout=60)
    entry = json.loads(errors.splitlines()[0])
    assert entry["level"] == "warning"
    assert entry["address"] == "127.0.0.1:1"
    assert "cannot register" in entry["message"]
