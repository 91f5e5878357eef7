"""The metrics of a name server. RocketMQ's has none."""

from __future__ import annotations

from sparrow.telemetry.histogram import SECONDS_BOUNDS
from sparrow.telemetry.metric import Metric
from sparrow.telemetry.metrics.rocketmq import RPC_BOUNDS_MS

BROKERS = Metric(
    "sparrow_name_server_brokers", "gauge", "Brokers that are registered, by cluster.", ("cluster",), "brokers"
)
TOPICS = Metric("sparrow_name_server_topics", "gauge", "Topics that have a route.", (), "topics")
CONNECTIONS = Metric("sparrow_name_server_connections", "gauge", "Open connections.", (), "connections")
REGISTRATION_AGE = Metric(
    "sparrow_name_server_registration_age_seconds",
    "gauge",
    "Time since the oldest of the last registrations of all brokers; a broker that is silent makes it grow.",
    (),
    "seconds",
)
NAME_CONFLICTS = Metric(
    "sparrow_name_server_name_conflicts",
    "gauge",
    "Broker names under which two brokers with one id are running; clients see one of them at a time.",
    (),
    "names",
)
REQUESTS = Metric(
    "sparrow_name_server_request_milliseconds",
    "histogram",
    "Time from the arrival of a request to its response.",
    ("request_code", "response_code"),
    "milliseconds",
    RPC_BOUNDS_MS,
)
LIMITS_HIT = Metric(
    "sparrow_name_server_limits_hit_total",
    "counter",
    "Connections or requests that were refused because of a limit.",
    ("limit",),
    "refusals",
)
ACCESS_REFUSALS = Metric(
    "sparrow_name_server_access_refusals_total",
    "counter",
    "Requests that were refused because they have no valid signature or not the permission, and connections that were "
    "refused by TLS.",
    ("cause",),
    "refusals",
)
HELD_BYTES = Metric(
    "sparrow_name_server_held_bytes",
    "gauge",
    "Bytes in memory that peers hold: of incomplete frames, of requests in progress, of responses that are not sent.",
    ("kind",),
    "bytes",
)
LOOP_HOLDS = Metric(
    "sparrow_name_server_loop_hold_seconds",
    "histogram",
    "How long requests held the event loop, if it was longer than net.loop_hold_ms; `none` is a delay of the loop that "
    "no single request explains.",
    ("request_code",),
    "seconds",
    SECONDS_BOUNDS,
)

NAME_SERVER_METRICS = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))
