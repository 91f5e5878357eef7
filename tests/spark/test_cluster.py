"""A cluster with separate executor processes, on both stores: each message is copied once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.spark import ScriptResult

from sparrow.client import Admin, Message, Producer
from sparrow.testing.platform import run_platform

pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(300)]

ROWS = 600
SCRIPT = """
import json
import sys

from pyspark.sql import functions as f
from tests.support.spark import start_script_session

spark = start_script_session()
found = {}
for store, name_servers in json.loads(sys.argv[1]).items():
    given = {"nameServers": name_servers}
    stream = spark.readStream.format("sparrow").options(
        **given, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=250, targetRowsPerTask=0
    )
    rows = stream.schema("body string, keys string, store_timestamp timestamp").load()
    shuffled = rows.repartition(3, "keys").select(f.upper("body").alias("body"), "keys")
    writer = shuffled.writeStream.format("sparrow").options(**given, topic="copies")
    writer.option("checkpointLocation", f"state-{store}").trigger(availableNow=True).start().awaitTermination()
    copies = spark.read.format("sparrow").options(**given, subscribe="copies").schema("body string, keys string").load()
    found[store] = sorted(row.body for row in copies.collect())
executors = spark.sparkContext._jsc.sc().getExecutorMemoryStatus().size() - 1
print("RESULT " + json.dumps({"executors": executors, "found": found}))
spark.stop()
"""


@pytest.mark.thorough
def test_a_cluster_copies_topics_of_both_stores_exactly_once(
    local_cluster_spark: Callable[..., ScriptResult], tmp_path: Path
) -> None:
    with run_platform() as log, run_platform(store=f"sqlite:///{tmp_path}/messages.db") as sql:
        places = {"log": log.name_servers, "sql": sql.name_servers}
        for name_servers in places.values():
            with Admin(name_servers) as admin, Producer(name_servers) as producer:
                admin.create_topic("orders", queues=3)
                admin.create_topic("copies", queues=2)
                for number in range(ROWS):
                    producer.send(Message("orders", f"order-{number}", keys=f"key-{number % 7}"))
        ran = local_cluster_spark(SCRIPT, json.dumps(places), timeout_s=280)
        assert ran.code == 0, ran.errors[-4000:]
        result = json.loads(ran.output.split("RESULT ", 1)[1])
        assert result["executors"] == 2
        assert result["found"] == {store: sorted(f"ORDER-{n}" for n in range(ROWS)) for store in places}
