"""`sparrow pipeline`: commands for data jobs and pipelines on Spark."""
