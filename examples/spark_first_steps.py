"""Read a topic as a Spark table and as a stream, query it, and aggregate it into another topic exactly once.

`pip install 'sparrowmq[spark]'` installs Spark, and a Java runtime for machines that have none. `spark_session` finds
that Java; `format("sparrow")` also works in any other Spark session of the same Python environment.
"""

import json
import tempfile

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

import sparrow.testing
from sparrow import Admin, Message, Producer
from sparrow.spark import spark_session

CITIES = ("Berlin", "Lagos", "Lima")


def send_orders(name_servers: str, count: int) -> None:
    with Producer(name_servers) as producer:
        for number in range(count):
            body = json.dumps({"cents": 100 + number})
            producer.send(Message("orders", body, tags=CITIES[number % 3], keys=f"order-{number}"))


spark = spark_session("first steps")
with sparrow.testing.run_platform() as platform, tempfile.TemporaryDirectory() as checkpoint:
    connection = {"nameServers": platform.name_servers}
    send_orders(platform.name_servers, 300)

    print("A topic is a table. Name the columns you need; docs/spark.md lists them all:")
    columns = "body string, keys string, tags string, queue_id int, queue_offset bigint, store_timestamp timestamp"
    orders = spark.read.format("sparrow").schema(columns).options(**connection, subscribe="orders").load()
    orders.orderBy("queue_id", "queue_offset").show(3, truncate=False)

    print("SQL can query it:")
    orders.createOrReplaceTempView("orders")
    spark.sql("""
        SELECT tags AS city, count(*) AS orders, sum(get_json_object(body, '$.cents')) / 100 AS euros
        FROM orders GROUP BY city ORDER BY city
    """).show()

    # The topic is also a stream. The query commits its progress to the group `groupId`, so that its lag is visible.
    reader = spark.readStream.format("sparrow").schema(columns)
    stream = reader.options(**connection, subscribe="orders", startingOffsets="earliest", groupId="revenue").load()
    windows = (
        stream.withColumn("cents", f.get_json_object("body", "$.cents").cast("bigint"))
        .withWatermark("store_timestamp", "10 seconds")
        .groupBy(f.window("store_timestamp", "1 hour"), "tags")
        .agg(f.count("*").alias("orders"), f.sum("cents").alias("cents"))
        .select(f.col("tags").alias("keys"), f.to_json(f.struct("window.start", "orders", "cents")).alias("body"))
    )

    def publish(batch: DataFrame, number: int) -> None:
        """Write the updated results of one batch. Brokers record query and batch, so no batch is written twice."""
        batch.write.format("sparrow").mode("append").options(**connection, topic="revenue").save()

    def catch_up() -> None:
        """Process the existing messages, then end. `.trigger(processingTime="2 seconds")` would run until stopped."""
        writer = windows.writeStream.queryName("revenue").outputMode("update").trigger(availableNow=True)
        writer.option("checkpointLocation", checkpoint).foreachBatch(publish).start().awaitTermination()

    def show_lag(when: str) -> None:
        with Admin(platform.name_servers) as admin:
            print(f"{when}: group revenue is {admin.progress('revenue').lag} orders behind")

    catch_up()
    show_lag("after the first run")
    send_orders(platform.name_servers, 30)
    show_lag("30 orders later")
    catch_up()  # continues from the checkpoint and adds the 30 orders to the sums
    show_lag("after the second run")

    print("The window of every city, after the first and after the second run:")
    results = spark.read.format("sparrow").schema("keys string, body string, queue_offset bigint")
    results.options(**connection, subscribe="revenue").load().orderBy("keys", "queue_offset").show(truncate=False)
