from __future__ import annotations

import json

import pytest

from sparrow.model.errors import Refused
from sparrow.spark.source.offsets import SourceOffsets, parse_queue_name
from sparrow.wire.bodies import QueueRef


def test_the_json_of_offsets_does_not_depend_on_the_order_of_queues() -> None:
    queues = [QueueRef("orders", "b", 10), QueueRef("orders", "b", 9), QueueRef("a", "z", 0)]
    text = json.dumps(SourceOffsets(dict.fromkeys(queues, 1)).to_json())
    assert text == json.dumps(SourceOffsets(dict.fromkeys(reversed(queues), 1)).to_json())
    assert text == '{"v": 1, "q": {"a/z/0": 1, "orders/b/9": 1, "orders/b/10": 1}, "from": {}}'


@pytest.mark.parametrize("said", [{}, {"v": 2, "q": {}}, {"v": 1}, {"orders": {"0": 3}}])
def test_offsets_of_another_format_are_refused(said: dict[str, object]) -> None:
    with pytest.raises(Refused, match="new checkpoint location"):
        SourceOffsets.from_json(said)


@pytest.mark.parametrize("name", ["orders", "orders/0", "orders/b/x", "/b/0"])
def test_an_invalid_queue_name_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="invalid queue"):
        parse_queue_name(name)


def test_a_broker_name_may_contain_a_slash() -> None:
    assert parse_queue_name("orders/rack/1/7") == QueueRef("orders", "rack/1", 7)
