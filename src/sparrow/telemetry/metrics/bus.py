"""The metrics of an event bus: first those that its process counts, then those that are read from its database."""

from __future__ import annotations

from sparrow.telemetry.histogram import SECONDS_BOUNDS
from sparrow.telemetry.metric import Metric

PUBLISHED = Metric("bus_published_total", "counter", "Events written by publish.", (), "events")
SENT = Metric("bus_sent_total", "counter", "Events acknowledged by the broker.", (), "events")
RECEIVED = Metric("bus_received_total", "counter", "Messages stored from the broker.", (), "messages")
DUPLICATES = Metric("bus_duplicates_total", "counter", "Deliveries dropped as repeats.", (), "messages")
HANDLED = Metric("bus_handled_total", "counter", "Ends of handlers, by result.", ("result",), "messages")
RETRIES = Metric("bus_retries_total", "counter", "Failed attempts and new rounds, by place.", ("place",), "attempts")
FAILED = Metric("bus_failed_total", "counter", "Messages that entered Failed, by side.", ("side",), "messages")
LEASE_LOST = Metric("bus_lease_lost_total", "counter", "Messages that another worker took over.", (), "messages")
CLEANED_ROWS = Metric("bus_cleaner_rows_total", "counter", "Rows deleted after their time.", (), "rows")
MENDED = Metric("bus_mended_total", "counter", "Rows that had lost each other.", (), "rows")
CALLBACK_ERRORS = Metric("bus_callback_errors_total", "counter", "Errors of on_failed itself.", (), "errors")
OPERATIONS = Metric(
    "bus_operations_total", "counter", "Messages changed by operators, by action.", ("action", "side"), "messages"
)
SEND_SECONDS = Metric(
    "bus_send_seconds", "histogram", "How long the broker took to acknowledge a batch.", (), "seconds", SECONDS_BOUNDS
)
HANDLE_SECONDS = Metric("bus_handle_seconds", "histogram", "How long handlers ran.", (), "seconds", SECONDS_BOUNDS)
END_TO_END_SECONDS = Metric(
    "bus_end_to_end_seconds", "histogram", "From being stored here to being handled.", (), "seconds", SECONDS_BOUNDS
)
BUS_COUNTERS = {
    value.name: value for value in tuple(globals().values()) if isinstance(value, Metric) and value.kind == "counter"
}
"""The counters, by name."""

QUEUE_DEPTH = Metric("bus_queue_depth", "gauge", "Open messages, by group.", ("side", "group"), "messages")
LAG_SECONDS = Metric(
    "bus_lag_seconds", "gauge", "How long the message that waits longest has been due.", ("side", "group"), "seconds"
)
OLDEST_OPEN = Metric(
    "bus_oldest_open_seconds", "gauge", "Age of the oldest open message that is not delayed.", ("side",), "seconds"
)
MESSAGES = Metric(
    "bus_messages",
    "gauge",
    "Stored messages, by state; those that succeeded are not counted.",
    ("side", "status"),
    "messages",
)
DATABASE_REACHABLE = Metric("bus_database_reachable", "gauge", "1: the database answered.")

BUS_METRICS = tuple(value for value in tuple(globals().values()) if isinstance(value, Metric))
