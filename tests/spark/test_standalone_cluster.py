"""A standalone cluster, whose machines die: each message is copied once, and once by two attempts of one task."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest
from tests.fault.spark_driver import Plan
from tests.fault.spark_driver_process import Checkpoint
from tests.support.spark import ScriptResult, run_script
from tests.support.spark_cluster import SparkCluster, standalone_cluster
from tests.support.wait import wait_until

from sparrow.client import Admin, Consumer, Message, Producer
from sparrow.testing.platform import RunningPlatform, run_platform

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(900)]

QUEUES, BATCH_ROWS = 2, 100
BATCHES = {"smoke": 8, "full": 60}
KILL_EXECUTOR_AT, KILL_WORKER_AT = 2, 4
"""The batches in which an executor and a worker are killed."""
PATIENCE_S = 400.0

SCRIPT = """
import sys
from pathlib import Path

from pyspark import TaskContext
from tests.support.spark import start_script_session
from tests.support.wait import wait_until

name_servers, folder, batch_rows = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
spark = start_script_session(
    spark__driver__host="127.0.0.1",
    spark__driver__bindAddress="127.0.0.1",
    spark__executor__memory="512m",
    spark__executor__cores="1",
    spark__scheduler__minRegisteredResourcesRatio="1.0",
    spark__scheduler__maxRegisteredResourcesWaitingTime="300s",
    spark__speculation="true",
    spark__speculation__interval="100ms",
    spark__speculation__minTaskRuntime="100ms",
    spark__speculation__multiplier="1.1",
    spark__speculation__quantile="0.5",
)
given = {"nameServers": name_servers}
other_attempt = str(folder / "other-attempt")


def delay_first_attempt(batches):
    # The rows of this attempt are staged, but it does not end before the speculative attempt does.
    yield from batches
    task = TaskContext.get()
    if task.partitionId() == 0 and task.attemptNumber() == 0:
        wait_until(Path(other_attempt).exists, within_s=300)
    elif task.partitionId() == 0:
        Path(other_attempt).touch()


read = spark.read.format("sparrow").options(**given, subscribe="orders", targetRowsPerTask=0)
rows = read.schema("body binary, keys string").load().mapInArrow(delay_first_attempt, "body binary, keys string")
rows.write.format("sparrow").mode("append").options(**given, topic="speculated").save()

stream = spark.readStream.format("sparrow").options(
    **given, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=batch_rows, targetRowsPerTask=0
)
copied = stream.schema("body binary, keys string").load().repartition(2, "keys")
writer = copied.writeStream.format("sparrow").options(**given, topic="copies")
writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
writer.start().awaitTermination()
spark.stop()
"""


def in_background(run: Callable[[], ScriptResult]) -> Future[ScriptResult]:
    pool = ThreadPoolExecutor(1)
    ran = pool.submit(run)
    pool.shutdown(wait=False)
    return ran


def kill_during(checkpoint: Checkpoint, batch: int, ran: Future[ScriptResult], kill: Callable[[], None]) -> None:
    """Kill something while Spark works at this batch or a later one."""

    def is_busy() -> bool:
        assert not ran.done(), ran.result().errors[-4000:]
        return checkpoint.planned >= batch and checkpoint.planned > checkpoint.committed

    wait_until(is_busy, within_s=PATIENCE_S)
    kill()
    assert not ran.done(), "the query must still have batches to run"


def kill_executor(cluster: SparkCluster) -> None:
    (executor,) = cluster.workers[0].executors()
    os.kill(executor, signal.SIGKILL)


def bodies(platform: RunningPlatform, topic: str) -> list[bytes]:
    with Consumer(platform.name_servers, group="readers") as consumer:
        return sorted(consumer.read_table(topic, columns=["body"]).column("body").to_pylist())


@pytest.mark.thorough
def test_a_cluster_that_loses_an_executor_and_a_worker_copies_each_message_once(tmp_path: Path, scale: str) -> None:
    rows = BATCHES[scale] * BATCH_ROWS
    expected = sorted(b"order-%d" % number for number in range(rows))
    with run_platform() as platform, standalone_cluster(tmp_path / "cluster") as cluster:
        with Admin(platform.name_servers) as admin, Producer(platform.name_servers) as producer:
            admin.create_topic("orders", queues=QUEUES)
            for number in range(rows):
                producer.send(Message("orders", b"order-%d" % number, keys=f"key-{number % 7}"))
        checkpoint = Checkpoint(
            Plan(name="copy", broker="sparrow", source="orders", target="copies", checkpoint=f"{tmp_path}/checkpoint")
        )
        arguments = (platform.name_servers, str(tmp_path), str(BATCH_ROWS))
        script = partial(run_script, SCRIPT, *arguments, folder=tmp_path, master=cluster.url, timeout_s=2 * PATIENCE_S)
        ran = in_background(script)
        kill_during(checkpoint, KILL_EXECUTOR_AT, ran, partial(kill_executor, cluster))
        kill_during(checkpoint, KILL_WORKER_AT, ran, cluster.workers[1].kill)
        result = ran.result()
        assert result.code == 0, result.errors[-4000:]
        assert (tmp_path / "other-attempt").exists(), "Spark must have started a speculative attempt"
        assert bodies(platform, "speculated") == expected
        assert bodies(platform, "copies") == expected
