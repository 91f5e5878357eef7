"""The metrics page for Prometheus."""

import re

import pytest

from sparrow.bus.operations.stored_event import BusStats, GroupBacklog, RowCount, TableStats
from sparrow.bus.telemetry.metrics import prometheus_text
from sparrow.bus.telemetry.probe import BusProbe, FailedEvent
from sparrow.telemetry.histogram import SECONDS_BOUNDS
from sparrow.telemetry.metrics.bus import BUS_COUNTERS

SAMPLE = re.compile(r'[a-z_]+(\{[a-z]+="([^"\\\n]|\\["\\n])*"(,[a-z]+="([^"\\\n]|\\["\\n])*")*\})? -?[0-9.e+-]+')


def stats(*groups: GroupBacklog) -> BusStats:
    def side(name: str, *groups: GroupBacklog) -> TableStats:
        return TableStats(
            side=name,  # type: ignore[arg-type]
            by_status={"Failed": 3},
            parked=1,
            rows=RowCount(10),
            oldest_open_s=1.5,
            groups=groups,
        )

    return BusStats(side("published"), side("received", *groups))


def test_every_line_is_valid_and_every_metric_has_a_type() -> None:
    probe = BusProbe()
    probe.count("bus_retries_total", 2, place="send")
    probe.send_seconds.add(0.3)
    text = prometheus_text(probe, stats(GroupBacklog(side="received", group="a", open=4, held=1, due=2, lag_s=0.25)))
    assert text.endswith("\n")
    typed = set()
    for line in text.splitlines():
        if line.startswith("# TYPE"):
            typed.add(line.split()[2])
        elif not line.startswith("# HELP"):
            assert SAMPLE.fullmatch(line) or 'le="+Inf"' in line, line
            name = re.sub(r"_(bucket|sum|count)$", "", line.partition("{")[0].partition(" ")[0])
            assert name in typed, line
    assert typed >= set(BUS_COUNTERS) | {"bus_queue_depth", "bus_oldest_open_seconds", "bus_end_to_end_seconds"}


def test_counters_start_at_zero_and_keep_their_labels() -> None:
    probe = BusProbe()
    assert "bus_published_total 0" in prometheus_text(probe, None).splitlines()
    probe.count("bus_handled_total", 5, result="ok")
    lines = prometheus_text(probe, None).splitlines()
    assert 'bus_handled_total{result="ok"} 5' in lines
    assert "bus_handled_total 0" not in lines


def test_histogram_buckets_add_up_to_the_count() -> None:
    probe = BusProbe()
    for seconds in (0.0005, 0.001, 0.02, 1_000.0):
        probe.handle_seconds.add(seconds)
    lines = prometheus_text(probe, None).splitlines()
    assert 'bus_handle_seconds_bucket{le="0.001"} 2' in lines
    assert f'bus_handle_seconds_bucket{{le="{SECONDS_BOUNDS[-1]}"}} 3' in lines
    assert 'bus_handle_seconds_bucket{le="+Inf"} 4' in lines
    assert "bus_handle_seconds_count 4" in lines


def test_special_characters_in_a_group_name_are_escaped() -> None:
    strange = GroupBacklog(side="received", group='a"b\\c\nd', open=1, held=0, due=0, lag_s=0)
    assert (
        r'bus_queue_depth{side="received",group="a\"b\\c\nd"} 1'
        in prometheus_text(BusProbe(), stats(strange)).splitlines()
    )


def test_without_a_database_the_metrics_of_the_process_are_still_listed() -> None:
    lines = prometheus_text(BusProbe(), None).splitlines()
    assert "bus_database_reachable 0" in lines
    assert not any(line.startswith("bus_queue_depth") for line in lines)
    assert "bus_database_reachable 1" in prometheus_text(BusProbe(), stats()).splitlines()


def test_an_error_in_a_callback_is_counted_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    probe = BusProbe()

    def fail(_: FailedEvent) -> None:
        raise RuntimeError("broken hook")

    probe.on_failed.append(fail)
    probe.failed(FailedEvent("received", 7, "order.created", "billing.v1", {}, "{}", "error", 1, 0))
    assert probe.totals["bus_callback_errors_total"] == 1
    assert caplog.messages == ["on_failed raised an error for event order.created, message 7 in received"]
