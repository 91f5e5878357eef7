"""`NameServerMetrics`: the metrics of a name server, read when a scrape asks for them."""

from __future__ import annotations

from collections.abc import Iterator

from sparrow.nameserver.context import NameServerContext
from sparrow.net.dispatcher import RequestDispatcher
from sparrow.net.listener import Listener
from sparrow.net.request_meter import RequestMeter, request_name, response_name
from sparrow.telemetry.metric import Family, single
from sparrow.telemetry.metrics import name_server as metrics


class NameServerMetrics:
    """The metrics of one name server."""

    def __init__(
        self, context: NameServerContext, dispatcher: RequestDispatcher[NameServerContext], listener: Listener
    ) -> None:
        """Measure a name server from now on."""
        self._context, self._listener = context, listener
        self._meter = dispatcher.meter = RequestMeter()
        self._node_labels = {"node_type": "name_server", "node_id": str(context.address)}

    def families(self) -> Iterator[Family]:
        """Yield the metrics."""
        labels, routes = self._node_labels, self._context.routes
        yield Family(
            metrics.BROKERS, [((name,), count) for name, count in sorted(routes.broker_counts().items())], labels
        )
        yield single(metrics.TOPICS, routes.topic_count, labels)
        yield single(metrics.CONNECTIONS, len(self._listener.channels), labels)
        seen_ms = routes.oldest_registration_ms()
        if seen_ms is not None:
            yield single(metrics.REGISTRATION_AGE, max(0, self._context.monotonic_ms() - seen_ms) / 1000, labels)
        yield single(metrics.NAME_CONFLICTS, len(routes.conflicts.current()), labels)
        latencies = self._meter.by_names(lambda code, response: (request_name(code), response_name(response)))
        yield Family(metrics.REQUESTS, list(latencies.items()), labels)
        refusals = self._listener.limits_hit()
        yield Family(metrics.LIMITS_HIT, [((name,), count) for name, count in refusals.items()], labels)
        yield Family(metrics.ACCESS_REFUSALS, self._listener.access_refusals(), labels)
        yield Family(metrics.HELD_BYTES, self._listener.budgets.held(), labels)
        yield Family(metrics.LOOP_HOLDS, self._listener.watchdog.values(), labels)
