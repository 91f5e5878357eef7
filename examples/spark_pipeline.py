"""Run a pipeline file from Python, as `sparrow pipeline run examples/pipeline_orders.toml` does.

The file defines sources, SQL and sinks. This program overrides its name server and its checkpoint folder.
"""

import json
import tempfile
from pathlib import Path

import msgspec

import sparrow.testing
from sparrow import Message, Producer
from sparrow.spark import spark_session
from sparrow.spark.pipelines import load
from sparrow.spark.pipelines.runner import run_pipeline

declared = load(Path(__file__).with_name("pipeline_orders.toml"))
print(f"pipeline {declared.name}: {declared.sources[0].topic} -> {declared.sinks[0].topic}")

spark = spark_session("pipeline")
with sparrow.testing.run_platform() as platform, tempfile.TemporaryDirectory() as checkpoint:
    pipeline = msgspec.structs.replace(declared, name_servers=platform.name_servers, checkpoint=checkpoint)
    with Producer(platform.name_servers) as producer:
        for number in range(300):
            body = json.dumps({"cents": 100 + number})
            producer.send(Message("demo_orders", body, tags=("Berlin", "Lagos", "Lima")[number % 3]))

    done = run_pipeline(spark, pipeline, on_progress=lambda done: None)  # called with the progress of each batch
    print(f"{done.rows} orders read")
    done = run_pipeline(spark, pipeline, on_progress=lambda done: None)
    print(f"{done.rows} orders read by the second run, which continues where the first one ended")

    results = spark.read.format("sparrow").options(nameServers=platform.name_servers, subscribe="demo_minutes")
    results.schema("keys string, body string").load().orderBy("keys").show(truncate=False)
