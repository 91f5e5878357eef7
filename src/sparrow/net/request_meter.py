"""The time from the arrival of requests to their responses, by request and response code.

Requests that a handler answers at once are only counted; the time of the read that they arrived in is that of all of
them. So a send pays an addition, and a read two looks at a clock.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Collection
from time import monotonic

from sparrow.telemetry.histogram import DurationHistogram
from sparrow.telemetry.metric import HistogramValue
from sparrow.telemetry.metrics.rocketmq import RPC_BOUNDS_MS
from sparrow.wire.codes import RequestCode, ResponseCode
from sparrow.wire.frame import response_code_of

METER_BOUNDS_MS = (0.1, 0.25, 0.5, 1, 2, 3, 5, 7, 10, 25, 50, 100, 250, 500, 1000, 2000, 3000)
"""RocketMQ's bounds, which its metric has, and others between them: most sends take less than its first."""
assert set(RPC_BOUNDS_MS) <= set(METER_BOUNDS_MS)
CODE_PAIRS_MAX = 1_000
"""Pairs of request and response code that are kept: a peer may send any number as a request code."""
NO_RESPONSE = -1
"""The response code of a one-way request."""
UNKNOWN_REQUEST = -1
UNKNOWN_NAME = "unknown"

CodePair = tuple[int, int]


class RequestMeter:
    """The requests of one server. Used on its event loop only."""

    def __init__(self) -> None:
        self.latencies: dict[CodePair, DurationHistogram] = {}
        """By request code and response code."""
        self.answered: dict[int, int] = {}
        """Requests of the current read that succeeded at once, by code. The dispatcher adds to it."""
        self.on_read_end = self._count_answered
        """What a channel calls at the end of a read with such requests."""
        self._by_code: dict[int, DurationHistogram] = {}

    def _count_answered(self, duration_s: float) -> None:
        """Count the requests that were answered at once, with the time that their read took."""
        duration_ms = duration_s * 1000
        bucket = bisect_left(METER_BOUNDS_MS, duration_ms) if duration_ms > METER_BOUNDS_MS[0] else 0
        answered, by_code = self.answered, self._by_code
        while answered:
            code, count = answered.popitem()
            histogram = by_code.get(code) or self._first_answer(code)
            histogram.counts[bucket] += count
            histogram.sum += duration_ms * count

    def _first_answer(self, code: int) -> DurationHistogram:
        histogram = self._by_code[code] = self._counts(code, 0)
        return histogram

    def count_response(self, code: int, frame: bytes | None, began_s: float) -> None:
        """Count a request whose response may be an error; None: it was one-way."""
        response_code = NO_RESPONSE if frame is None else response_code_of(frame)
        self._counts(code, response_code).add((monotonic() - began_s) * 1000)

    def count_successes(self, code: int, began_s: float, count: int) -> None:
        """Count requests that arrived together and have succeeded now."""
        self._counts(code, ResponseCode.SUCCESS).add((monotonic() - began_s) * 1000, count)

    def by_names(self, labels: Callable[[int, int], tuple[str, ...]]) -> dict[tuple[str, ...], HistogramValue]:
        """Return the times by labels, which `labels` makes of a request code and a response code."""
        named: dict[tuple[str, ...], HistogramValue] = {}
        for codes, histogram in list(self.latencies.items()):
            value, key = _with_rpc_bounds(histogram), labels(*codes)
            if key in named:  # codes without a name share one
                counts = [a + b for a, b in zip(named[key].counts, value.counts, strict=True)]
                value = HistogramValue(counts, named[key].sum + value.sum)
            named[key] = value
        return named

    def successes(self, codes: Collection[int]) -> DurationHistogram:
        """Return the times of the requests with one of these codes that succeeded."""
        total = DurationHistogram(METER_BOUNDS_MS)
        for code in codes:
            found = self.latencies.get((code, 0))
            if found is not None:
                total.counts = [a + b for a, b in zip(total.counts, found.counts, strict=True)]
                total.sum += found.sum
        return total

    def _counts(self, code: int, response_code: int) -> DurationHistogram:
        found = self.latencies.get((code, response_code))
        if found is None:
            if len(self.latencies) >= CODE_PAIRS_MAX:
                code = UNKNOWN_REQUEST
            found = self.latencies.setdefault((code, response_code), DurationHistogram(METER_BOUNDS_MS))
        return found


def _with_rpc_bounds(histogram: DurationHistogram) -> HistogramValue:
    value, counts = histogram.value, [0] * (len(RPC_BOUNDS_MS) + 1)
    for bound, count in zip((*METER_BOUNDS_MS, math.inf), value.counts, strict=True):
        counts[bisect_left(RPC_BOUNDS_MS, bound)] += count
    return HistogramValue(counts, value.sum)


def request_name(code: int) -> str:
    """Return the name of a request code as RocketMQ's exporter writes it; peers may send any number."""
    try:
        return RequestCode(code).name.lower()
    except ValueError:
        return UNKNOWN_NAME


def response_name(code: int) -> str:
    """Return the name of a response code; a one-way request counts as a success."""
    try:
        return ResponseCode(max(code, 0)).name.lower()
    except ValueError:
        return UNKNOWN_NAME
