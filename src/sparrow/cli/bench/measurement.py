"""What a scenario of `sparrow bench` measured: rate, latency percentiles, and a plot of latencies."""

from __future__ import annotations

from bisect import bisect_right

import msgspec

PERCENTILES = (50, 90, 99, 99.9)
_BUCKET_BOUNDS_MS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000)
_BLOCKS = " ▏▎▍▌▋▊▉█"


class Latencies(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of latencies, in ms."""

    p50_ms: float
    p90_ms: float
    p99_ms: float
    p999_ms: float
    max_ms: float

    @classmethod
    def of(cls, samples_ms: list[float]) -> Latencies | None:
        """Return the percentiles of samples; None without any."""
        if not samples_ms:
            return None
        ordered = sorted(samples_ms)
        found = [round(_percentile(ordered, each), 3) for each in PERCENTILES]
        return cls(p50_ms=found[0], p90_ms=found[1], p99_ms=found[2], p999_ms=found[3], max_ms=round(ordered[-1], 3))


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a scenario."""

    scenario: str
    messages: int
    seconds: float
    messages_per_s: float
    mib_per_s: float
    latency: Latencies | None = None
    histogram: dict[str, int] = {}
    """Upper bound of a latency, in ms, to the number of messages below it and above the bound before."""

    @classmethod
    def of(
        cls, scenario: str, messages: int, seconds: float, body_bytes: int, samples_ms: list[float] | None = None
    ) -> Measurement:
        """Compute rates and percentiles."""
        per_s = messages / seconds if seconds > 0 else 0.0
        return cls(
            scenario=scenario,
            messages=messages,
            seconds=round(seconds, 3),
            messages_per_s=round(per_s, 1),
            mib_per_s=round(per_s * body_bytes / (1 << 20), 2),
            latency=Latencies.of(samples_ms or []),
            histogram=count_buckets(samples_ms or []),
        )


class BenchReport(msgspec.Struct, frozen=True, kw_only=True):
    """All scenarios."""

    platform: str
    """`temporary`, or the name servers."""
    version: str
    body_bytes: int
    measurements: list[Measurement]


def _percentile(ordered: list[float], percent: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


def count_buckets(samples_ms: list[float]) -> dict[str, int]:
    """Return how many samples are in each bucket, without empty buckets at both ends."""
    counts = [0] * (len(_BUCKET_BOUNDS_MS) + 1)
    for sample in samples_ms:
        counts[bisect_right(_BUCKET_BOUNDS_MS, sample)] += 1
    used = [index for index, count in enumerate(counts) if count]
    if not used:
        return {}
    return {_bound_text(index): counts[index] for index in range(used[0], used[-1] + 1)}


def plot_histogram(histogram: dict[str, int], width: int) -> list[str]:
    """Return one bar a line; the longest has the given width in characters."""
    most = max(histogram.values(), default=0)
    lines = []
    for bound, count in histogram.items():
        eighths = round(8 * width * count / most) if most else 0
        bar = "█" * (eighths // 8) + (_BLOCKS[eighths % 8] if eighths % 8 else "")
        lines.append(f"{bound:>8} ms {bar} {count:,}")
    return lines


def _bound_text(index: int) -> str:
    return f"< {_BUCKET_BOUNDS_MS[index]:g}" if index < len(_BUCKET_BOUNDS_MS) else f">= {_BUCKET_BOUNDS_MS[-1]:g}"
