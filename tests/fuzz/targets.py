"""All fuzz targets, by name."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz import server_targets, wire_targets

TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target
    for target in (
        wire_targets.frames,
        wire_targets.json_headers,
        wire_targets.binary_headers,
        wire_targets.request_bodies,
        wire_targets.batches,
        wire_targets.records,
        wire_targets.record_columns,
        wire_targets.property_strings,
        server_targets.sql92_conditions,
        server_targets.http_requests,
    )
}
