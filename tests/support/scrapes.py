"""Scrapes of a metrics endpoint, parsed with prometheus-client."""

import asyncio
import time
import urllib.request
from collections.abc import Callable
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

NODE_LABELS = frozenset({"cluster", "node_type", "node_id"})


class Scrape(NamedTuple):
    """The series of one scrape."""

    families: dict[str, Any]
    """By the name in the `TYPE` line."""

    @property
    def labels(self) -> dict[str, set[str]]:
        """The labels of each metric, without those of the node and of buckets."""
        return {
            name: {label for sample in family.samples for label in sample.labels} - NODE_LABELS - {"le"}
            for name, family in self.families.items()
        }

    @property
    def types(self) -> dict[str, str]:
        return {name: family.type for name, family in self.families.items()}

    def value(self, name: str, **labels: str) -> float | None:
        """Return the sum of the samples with this name and these labels; None if there is none."""
        found = [
            sample.value
            for family in self.families.values()
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        ]
        return sum(found) if found else None


def parse(text: str) -> Scrape:
    # The parser takes `_total` off the names of counters.
    return Scrape(
        {
            family.name + ("_total" if family.type == "counter" else ""): family
            for family in text_string_to_metric_families(text)
        }
    )


def get(address: str, path: str = "/metrics", accept: str = "") -> str:
    request = urllib.request.Request(f"http://{address}{path}", headers={"Accept": accept} if accept else {})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode()


async def scrape(address: str) -> Scrape:
    return parse(await asyncio.to_thread(get, address))


async def scrape_until(address: str, condition: Callable[[Scrape], object], *, within_s: float = 60) -> Scrape:
    """Scrape until the condition holds, and return that scrape; fail after a timeout."""
    begun = time.monotonic()
    while not condition(found := await scrape(address)):
        assert time.monotonic() - begun < within_s, f"the metrics were not as expected within {within_s} s"
        await asyncio.sleep(0.05)
    return found
