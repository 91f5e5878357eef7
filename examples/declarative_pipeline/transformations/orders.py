"""The topic `orders` as a table, and its large orders as another topic."""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark = SparkSession.active()


@dp.table
def orders() -> DataFrame:
    read = spark.readStream.format("sparrow").options(
        subscribe="orders", startingOffsets="earliest", groupId="declarative_orders"
    )
    messages = read.schema("body string, keys string, store_timestamp timestamp").load()
    order = f.from_json("body", "city string, cents bigint")
    return messages.select("keys", "store_timestamp", order.alias("order")).select("keys", "store_timestamp", "order.*")


dp.create_sink("large_orders", "sparrow", {"topic": "large_orders"})


@dp.append_flow(target="large_orders")
def large_orders_flow() -> DataFrame:
    large = spark.readStream.table("orders").where("cents > 4000")
    return large.selectExpr("to_json(struct(city, cents)) AS body", "keys")
