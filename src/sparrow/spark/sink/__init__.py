"""Writing to topics: rows become records in tasks, and the driver's commit publishes them."""
