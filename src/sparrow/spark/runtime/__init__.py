"""Running Spark: find Java, open a session, speed up its start, package the environment, watch jobs."""
