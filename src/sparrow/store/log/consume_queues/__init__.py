"""consume_queues."""
