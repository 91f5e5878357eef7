"""The metrics of a broker that RocketMQ does not have."""

from __future__ import annotations

from sparrow.telemetry.histogram import SECONDS_BOUNDS
from sparrow.telemetry.metric import Metric

CONNECTIONS = Metric("sparrow_connections", "gauge", "Open connections.", (), "connections")
LONG_POLLS = Metric("sparrow_long_polls", "gauge", "Pulls and pops that wait for messages.", (), "requests")
REQUESTS_IN_PROGRESS = Metric(
    "sparrow_requests_in_progress", "gauge", "Requests that are being handled.", (), "requests"
)
LIMITS_HIT = Metric(
    "sparrow_limits_hit_total",
    "counter",
    "Connections or requests that were refused because of a limit.",
    ("limit",),
    "refusals",
)
ACCESS_REFUSALS = Metric(
    "sparrow_access_refusals_total",
    "counter",
    "Requests that were refused because they have no valid signature or not the permission, and connections that were "
    "refused by TLS.",
    ("cause",),
    "refusals",
)
HELD_BYTES = Metric(
    "sparrow_held_bytes",
    "gauge",
    "Bytes in memory that peers hold: of incomplete frames, of requests in progress, of responses that are not sent.",
    ("kind",),
    "bytes",
)
LOOP_HOLDS = Metric(
    "sparrow_loop_hold_seconds",
    "histogram",
    "How long requests held the event loop, if it was longer than net.loop_hold_ms; `none` is a delay of the loop that "
    "no single request explains.",
    ("request_code",),
    "seconds",
    SECONDS_BOUNDS,
)
RETRIES = Metric(
    "sparrow_retry_messages_total",
    "counter",
    "Messages that consumers sent back for a later delivery.",
    ("consumer_group", "topic"),
    "messages",
)
EMPTY_PULLS = Metric("sparrow_empty_pulls_total", "counter", "Pulls and pops that returned nothing.", (), "requests")
STORED_MESSAGES = Metric(
    "sparrow_stored_messages",
    "gauge",
    "Messages that the topic holds, read or not, by the last sample; on both kinds of store.",
    ("topic",),
    "messages",
)
DELAYED_MESSAGES = Metric(
    "sparrow_delayed_messages", "gauge", "Messages that wait for their delivery time.", (), "messages"
)
IN_FLIGHT_BATCHES = Metric(
    "sparrow_pop_in_flight_batches", "gauge", "Batches that were popped and are not acknowledged.", (), "batches"
)
STAGED_BYTES = Metric("sparrow_staged_bytes", "gauge", "Bytes of Spark's stages that are not committed.", (), "bytes")
FLUSH_SECONDS = Metric(
    "sparrow_flush_seconds", "histogram", "How long a flush of the commit log took.", (), "seconds", SECONDS_BOUNDS
)
DISK_USED_RATIO = Metric(
    "sparrow_disk_used_ratio", "gauge", "Used part of the disk with the store; sends are refused above a limit."
)
DISK_REFUSE_RATIO = Metric(
    "sparrow_disk_refuse_ratio", "gauge", "Used part of the disk above which sends are refused (log.disk_refuse_ratio)."
)
DISK_FREE = Metric("sparrow_disk_free_bytes", "gauge", "Free bytes of the disk with the store.", (), "bytes")
SNAPSHOT_AGE = Metric(
    "sparrow_sample_age_seconds",
    "gauge",
    "Age of the sample that lag, half messages and disk figures are from.",
    (),
    "seconds",
)
SNAPSHOT_SECONDS = Metric("sparrow_sample_duration_seconds", "gauge", "How long the last sample took.", (), "seconds")
FOLDED_SERIES = Metric(
    "sparrow_metrics_folded_keys",
    "gauge",
    "Topics, or groups on topics, that are added up under `__other__`.",
    ("kind",),
    "keys",
)
DROPPED_SERIES = Metric(
    "sparrow_metrics_dropped_series_total",
    "counter",
    "Topics, or groups on topics, that got no series of their own because of telemetry.series_max.",
    ("kind",),
    "keys",
)
IS_LEADER = Metric(
    "sparrow_is_leader", "gauge", "1: this broker leads its replica set or its database; a broker alone always leads."
)
LEADER_EPOCH = Metric("sparrow_leader_epoch", "gauge", "The epoch of the last known leader.")
IN_SYNC_REPLICAS = Metric(
    "sparrow_in_sync_replicas", "gauge", "Replicas in the in-sync set, by the last state that was read.", (), "replicas"
)
REPLICAS = Metric("sparrow_replicas", "gauge", "Replicas of the set.", (), "replicas")
REPLICATION_LAG = Metric(
    "sparrow_replication_lag_bytes",
    "gauge",
    "Bytes of the log that are written here and not committed by the in-sync set.",
    (),
    "bytes",
)

BROKER_METRICS = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))
