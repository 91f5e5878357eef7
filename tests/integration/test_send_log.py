"""Producers log every send with the keys and the result of the message, at debug level or as `send_log_level` says."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from sparrow import Message, Producer, SendResult, Unavailable, aio
from sparrow.testing import RunningPlatform, run_platform

LOGGER = "sparrow.client.produce.send_log"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningPlatform]:
    with run_platform(tmp_path_factory.mktemp("platform")) as running:
        yield running


def lines(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    """Return the lines about topic T: other tests of this process may send meanwhile."""
    texts = [each.getMessage() for each in caplog.records if each.name == LOGGER and each.levelno == level]
    return [text for text in texts if re.search(r"\bT\b", text)]


def line_of(keys: str, result: SendResult) -> str:
    queue = f"{result.topic}/{result.broker_name}/{result.queue_id}"
    where = f"queue offset {result.queue_offset}, offset id {result.offset_id}"
    return f"message {result.message_id} with keys {keys!r} sent to {queue}: SEND_OK, {where}"


def test_every_way_to_send_logs_keys_and_result_of_each_message(platform: RunningPlatform, caplog) -> None:
    with caplog.at_level(logging.DEBUG, LOGGER), Producer(platform.name_servers) as producer:
        expected = [line_of("k-1", producer.send(Message("T", "one", keys="k-1")))]
        expected.append(line_of("", producer.send(Message("T", "without keys"))))
        both = producer.send_batch([Message("T", "a", keys=["x", "y"]), Message("T", "b", keys="z")])
        expected += [line_of(keys, result) for keys, result in zip(("x y", "z"), both, strict=True)]
        with producer.transaction(Message("T", "half", keys="k-2")) as half:
            expected.append(line_of("k-2", half))
        assert lines(caplog, logging.DEBUG) == expected
        caplog.clear()
        producer.send_one_way(Message("T", "no answer", keys="k-3"))
        (said,) = lines(caplog, logging.DEBUG)
        assert said.endswith(" with keys 'k-3' sent one way to topic T, without a result")
        caplog.clear()
        producer.send_table("T", pa.table({"body": ["1", "2"], "keys": ["r-1", "r-2"]}))
        assert [
            " with keys 'r-1' sent to T/" in lines(caplog, logging.DEBUG)[0],
            len(lines(caplog, logging.DEBUG)),
        ] == [True, 2]


async def test_lingering_sends_log_one_line_for_each_message(platform: RunningPlatform, caplog) -> None:
    with caplog.at_level(logging.DEBUG, LOGGER):
        async with aio.Producer(platform.name_servers, linger_ms=1) as producer:
            sent = [producer.send_soon(Message("T", f"{number}", keys=f"k-{number}")) for number in range(20)]
            results = await asyncio.gather(*sent)
    assert lines(caplog, logging.DEBUG) == [line_of(f"k-{number}", result) for number, result in enumerate(results)]


@pytest.mark.parametrize("flavour", ["blocking", "asyncio"])
async def test_the_option_raises_the_level_to_info(platform: RunningPlatform, flavour: str, caplog) -> None:
    with caplog.at_level(logging.INFO, LOGGER):
        if flavour == "blocking":
            servers = platform.name_servers
            with Producer(servers) as silent, Producer(servers, send_log_level="info") as one:
                silent.send(Message("T", "by default at debug level"))
                result = one.send(Message("T", "body", keys="k"))
        else:
            async with (
                aio.Producer(platform.name_servers) as quiet,
                aio.Producer(platform.name_servers, send_log_level="info") as other,
            ):
                await quiet.send(Message("T", "by default at debug level"))
                result = await other.send(Message("T", "body", keys="k"))
    assert lines(caplog, logging.INFO) == [line_of("k", result)]


def test_a_failed_send_is_logged_with_its_keys_and_the_error(tmp_path: Path, caplog) -> None:
    with run_platform(tmp_path) as platform:
        with Producer(platform.name_servers, timeout_ms=500, send_log_level="info") as producer:
            producer.send(Message("T", "before"))
            platform.stop()
            with caplog.at_level(logging.INFO, LOGGER), pytest.raises(Unavailable) as raised:
                producer.send(Message("T", "after", keys="lost-1"))
        (said,) = lines(caplog, logging.INFO)
        assert " with keys 'lost-1' not sent to topic T: " in said
        assert str(raised.value) in said
