"""The text of metrics, read back with prometheus-client's own parsers."""

import asyncio
import time

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from sparrow.telemetry.exposition import metrics_text, render, wants_open_metrics
from sparrow.telemetry.histogram import DurationHistogram
from sparrow.telemetry.metric import Family, HistogramValue, Metric
from sparrow.telemetry.prometheus import SparrowCollector

COUNTER = Metric("x_messages_total", "counter", "Messages,\nby topic \\ group.", ("topic", "group"))
GAUGE = Metric("x_ratio", "gauge", "A ratio.")
HISTOGRAM = Metric("x_seconds", "histogram", "Times.", ("code",), "seconds", (0.5, 1, 10))
NODE = {"cluster": "c%s", "node_id": 'a"b\\c\nd'}
FAMILIES = [
    Family(COUNTER, [(("orders", "%RETRY%a"), 7), (('a"b', "c\\d\ne"), 2)], NODE),
    Family(GAUGE, [((), 0.25)], NODE),
    Family(HISTOGRAM, [(("send",), HistogramValue([1, 0, 2, 1], 12.5))], NODE),
]


class Source:
    def families(self):
        return iter(FAMILIES)


def samples(parsed):
    return {(each.name, tuple(sorted(each.labels.items()))): each.value for family in parsed for each in family.samples}


def test_text_has_the_samples_that_were_given_whatever_characters_labels_have() -> None:
    found = samples(parse_text("".join(render(FAMILIES))))
    assert found["x_messages_total", tuple(sorted({"topic": "orders", "group": "%RETRY%a", **NODE}.items()))] == 7
    assert found["x_messages_total", tuple(sorted({"topic": 'a"b', "group": "c\\d\ne", **NODE}.items()))] == 2
    assert found["x_ratio", tuple(sorted(NODE.items()))] == 0.25
    buckets = {dict(labels)["le"]: value for (name, labels), value in found.items() if name == "x_seconds_bucket"}
    assert buckets == {"0.5": 1, "1.0": 1, "10.0": 3, "+Inf": 4}
    assert found["x_seconds_sum", tuple(sorted({"code": "send", **NODE}.items()))] == 12.5


def test_both_formats_and_the_collector_of_prometheus_client_agree() -> None:
    plain = samples(parse_text("".join(render(FAMILIES))))
    assert samples(parse_open_metrics("".join(render(FAMILIES, open_metrics=True)))) == plain
    registry = CollectorRegistry()
    registry.register(SparrowCollector(Source()))
    assert samples(parse_text(generate_latest(registry).decode())) == plain


def test_a_family_that_is_yielded_in_parts_has_one_head() -> None:
    parts = [Family(GAUGE, ()), Family(GAUGE, [((), 1)]), Family(COUNTER, ()), Family(COUNTER, [(("a", "b"), 1)])]
    text = "".join(render(parts))
    assert text.count("# TYPE x_ratio gauge") == 1
    assert text.count("# TYPE x_messages_total counter") == 1


async def test_a_long_text_gives_others_a_turn_again_and_again() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def slow():
        for number in range(20):
            began = time.perf_counter()
            while time.perf_counter() - began < 0.0025:
                pass
            yield (str(number), "g"), number

    task = asyncio.create_task(count_turns())
    text = await metrics_text([Family(COUNTER, slow())])
    task.cancel()
    assert text.count("\n") == 22
    assert turns >= 20, "every slice of more than 2 ms must end with a turn of the loop"


def test_open_metrics_is_chosen_by_the_accept_header() -> None:
    assert wants_open_metrics("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.2")
    assert not wants_open_metrics("text/plain;version=0.0.4")


def test_histogram_counts_a_value_on_a_bound_in_the_bucket_below() -> None:
    histogram = DurationHistogram((1, 10))
    for value in (0.5, 1, 1.5, 10, 11):
        histogram.add(value)
    histogram.add(2, count=3)
    assert histogram.value == HistogramValue([2, 5, 1], 30.0)
    assert histogram.count == 8
