"""Spark's declarative pipelines with our source and sink: the example project, run twice by Spark's own command."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from sparrow.cli.main import app
from sparrow.client import Admin, Consumer, Message, Producer
from sparrow.testing.platform import RunningPlatform, run_platform

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
PROJECT = ROOT / "examples" / "declarative_pipeline"
SPARK_PIPELINES = Path(sys.executable).with_name("spark-pipelines")
RUN_S = 400.0
PACKAGES = ("grpc", "grpc_status", "google.rpc", "zstandard", "yaml", "pandas")


def send_orders(platform: RunningPlatform, numbers: range) -> None:
    with Producer(platform.name_servers) as producer:
        for number in numbers:
            order = {"city": ("Oslo", "Bergen")[number % 2], "cents": 100 * number}
            producer.send(Message.json("orders", order, keys=f"order-{number}"))


def run_project(project: Path, platform: RunningPlatform) -> str:
    """Run the project with the variables that `sparrow pipeline env` prints; return the output."""
    said = CliRunner().invoke(app, ["pipeline", "env"]).output
    variables = dict(re.findall(r"^export (\w+)=(\S+)$", said, re.MULTILINE))
    assert variables.keys() == {"JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"}
    process = subprocess.Popen(
        [SPARK_PIPELINES, "run"],
        cwd=project,
        env=os.environ
        | variables
        | {
            "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}",
            "SPARK_CONF_DIR": str(project / "conf"),
            "SPARROW_NAME_SERVERS": platform.name_servers,
        },
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=RUN_S)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert process.returncode == 0, output[-6000:]
    return output


def revenue(project: Path) -> dict[str, tuple[int, int]]:
    rows = pq.read_table(project / "spark-warehouse" / "revenue").to_pylist()
    return {row["city"]: (row["orders"], row["cents"]) for row in rows}


def large_orders(platform: RunningPlatform) -> list[str]:
    with Consumer(platform.name_servers, group="readers") as consumer:
        return sorted(consumer.read_table("large_orders", columns=["keys"]).column("keys").to_pylist())


@pytest.mark.thorough
@pytest.mark.skipif(
    not os.environ.get("CI") and not all(find_spec(name.partition(".")[0]) for name in PACKAGES),
    reason='needs pip install "sparrowmq[pipelines]"',
)
def test_two_runs_of_the_example_fill_the_tables_and_write_each_large_order_once(tmp_path: Path) -> None:
    project = tmp_path / "project"
    shutil.copytree(PROJECT, project)
    spec = project / "spark-pipeline.yml"
    spec.write_text(re.sub(r"storage: \S+", f"storage: file://{tmp_path}/storage", spec.read_text()))
    with run_platform() as platform:
        for numbers in (range(60), range(60, 100)):
            send_orders(platform, numbers)
            assert "Run is COMPLETED" in run_project(project, platform)
            sent = range(numbers.stop)
            assert revenue(project) == {
                city: (len(sent) // 2, sum(100 * number for number in sent if number % 2 == odd))
                for odd, city in enumerate(("Oslo", "Bergen"))
            }
            assert large_orders(platform) == sorted(f"order-{number}" for number in sent if 100 * number > 4000)
        with Admin(platform.name_servers) as admin:
            assert admin.progress("declarative_orders").lag == 0
