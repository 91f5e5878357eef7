"""NATS JetStream transport."""
