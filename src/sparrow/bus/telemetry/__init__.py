"""Counters, Prometheus metrics and OpenTelemetry spans of the bus."""
