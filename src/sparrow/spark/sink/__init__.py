"""The sink of `format("sparrow")`: tasks write rows to brokers, and the driver's commit publishes them."""
