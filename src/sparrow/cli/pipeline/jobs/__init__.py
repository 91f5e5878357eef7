"""Commands that run one of the jobs of `sparrow.spark.jobs`."""
