"""Apache Kafka transport."""
