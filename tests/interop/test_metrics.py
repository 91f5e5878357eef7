"""Sparrow's metrics beside a scrape of Apache's broker 5.5, after the same traffic."""

from pathlib import Path

import pytest
from tests.interop import official, platforms
from tests.support.metric_traffic import traffic
from tests.support.scrapes import Scrape, scrape, scrape_until

from sparrow.cli.server.platform import Platform
from sparrow.settings import BrokerSettings, LogSettings, NameServerSettings, TelemetrySettings
from sparrow.testing.platform import SMALL_LOG_SETTINGS

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

NOT_SERVED_PREFIXES = ("rocketmq_timer_", "rocketmq_timing_", "rocketmq_delay_", "rocketmq_pop_", "target_info")
"""Metrics of RocketMQ's timer, of its pop buffers, and of the exporter itself; docs/metrics.md says so."""
EXPORTER_LABEL = "otel_scope_name"


async def apache_scrape(folder: Path) -> Scrape:
    port = platforms.free_port()
    settings = {
        "metricsExporterType": "PROM",
        "metricsPromExporterHost": platforms.LOOPBACK,
        "metricsPromExporterPort": port,
    }
    with platforms.apache(official.kit("5.5.0"), folder, **settings) as running:
        async with traffic(running.name_server, "orders"):
            address = f"{platforms.LOOPBACK}:{port}"
            return await scrape_until(address, lambda found: "rocketmq_half_messages" in found.families)


async def sparrow_scrape(folder: Path) -> Scrape:
    async with (
        Platform(
            folder,
            name_server=NameServerSettings(port=0),
            broker=BrokerSettings(port=0),
            log=LogSettings.model_validate(SMALL_LOG_SETTINGS),
            telemetry=TelemetrySettings(metrics_port=0, sample_interval_ms=200),
        ) as running,
        traffic(running.name_servers, "orders"),
    ):
        assert running.telemetry_server is not None
        address = running.telemetry_server.address
        await scrape_until(address, lambda found: found.value("rocketmq_half_messages") is not None)
        return await scrape(address)


async def test_names_types_and_labels_are_those_of_apaches_broker(tmp_path: Path) -> None:
    theirs = await apache_scrape(tmp_path)
    ours = await sparrow_scrape(tmp_path / "sparrow")
    wanted = {name for name in theirs.families if not name.startswith(NOT_SERVED_PREFIXES)}
    assert len(wanted) >= 20, "Apache's broker must have been scraped"
    assert wanted <= ours.families.keys(), wanted - ours.families.keys()
    for name in sorted(wanted):
        assert ours.types[name] == theirs.types[name], name
        assert theirs.labels[name] - {EXPORTER_LABEL} <= ours.labels[name], name
        assert _bounds(ours, name) == _bounds(theirs, name), name
    for name in ("rocketmq_messages_in_total", "rocketmq_send_to_dlq_messages_total", "rocketmq_commit_messages_total"):
        assert ours.value(name, topic="orders", message_type="normal") == theirs.value(
            name, topic="orders", message_type="normal"
        )
        assert (ours.value(name, topic="orders") or 0) > 0


def _bounds(found: Scrape, name: str) -> set[str]:
    return {sample.labels["le"] for sample in found.families[name].samples if "le" in sample.labels}
