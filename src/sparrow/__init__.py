"""Sparrow: a message platform. RocketMQ's wire and log, SQL stores, an event bus, and Spark."""

__version__ = "0.1.0"
