"""Receipt handles of popped messages, the offset lists of an answer, and the names of pop retry topics. Pure functions.

    handle            start popTime invisibleTime reviveQueue retry brokerName queueId [offset]
    start offsets     retry queueId start                    joined by `;`, one for each queue read
    message offsets   retry queueId offset,offset,...        the same
    order counts      retry queueId n  or  retry qo<queueId>%<offset> n

`retry` is 0 for the topic itself and 1 for the group's retry topic of it. A client builds the handle of a message from
the lists, and sends it with its acknowledgement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import md5
from typing import NamedTuple

from sparrow.model.errors import BadRequest
from sparrow.model.protocol import RETRY_TOPIC_PREFIX
from sparrow.model.topic import TOPIC_NAME_CHARS_MAX

FIFO_REVIVE_QUEUE = 999
"""Stands for the revive queue in handles of FIFO pops."""
FROM_TOPIC, FROM_RETRY_TOPIC = "0", "1"
_FIELDS_MIN = 7
_DIGEST_CHARS = 32


class ReceiptHandle(NamedTuple):
    """The batch of a message in flight. Requests contain its queue and offset in other fields."""

    start: int
    pop_ms: int
    is_in_order: bool


def parse_handle(text: str) -> ReceiptHandle:
    fields = text.split(" ")
    if len(fields) >= _FIELDS_MIN:
        try:
            return ReceiptHandle(int(fields[0]), int(fields[1]), int(fields[3]) == FIFO_REVIVE_QUEUE)
        except ValueError:
            pass
    raise BadRequest("the handle", "extraInfo", f"is {text[:120]!r}, which is not a receipt handle")


def format_handle(
    *,
    start: int,
    pop_ms: int,
    invisible_ms: int,
    revive_queue: int,
    retry: str,
    broker: str,
    queue_id: int,
    offset: int,
) -> str:
    return f"{start} {pop_ms} {invisible_ms} {revive_queue} {retry} {broker} {queue_id} {offset}"


def start_entry(retry: str, queue_id: int, start: int) -> str:
    return f"{retry} {queue_id} {start}"


def offsets_entry(retry: str, queue_id: int, offsets: Iterable[int]) -> str:
    return f"{retry} {queue_id} {','.join(map(str, offsets))}"


def count_entries(queue_id: int, counts: Mapping[int, int]) -> list[str]:
    """Return how often each message was popped before. Clients before 5.1 only read the count of the queue."""
    if not any(counts.values()):
        return []
    by_offset = [f"{FROM_TOPIC} qo{queue_id}%{offset} {count}" for offset, count in counts.items()]
    return [f"{FROM_TOPIC} {queue_id} {min(counts.values())}", *by_offset]


def pop_begun_mark(group: str, topic: str) -> str:
    """Return the name of the mark for a group that has popped a topic: resends go to its pop retry topic."""
    return f"pop.begun {group} {topic}"


def pop_retry_topic(group: str, topic: str) -> str:
    """Return the retry topic for messages of a topic that a popping group did not acknowledge in time."""
    return stored_topic_name(f"{RETRY_TOPIC_PREFIX}{group}_{topic}")


def stored_topic_name(topic: str) -> str:
    """Return the stored name of a retry topic. Clients may build names that are too long: those are hashed."""
    if len(topic) <= TOPIC_NAME_CHARS_MAX or not topic.startswith(RETRY_TOPIC_PREFIX):
        return topic
    digest = md5(topic.encode(), usedforsecurity=False).hexdigest()
    assert len(digest) == _DIGEST_CHARS
    return f"{topic[: TOPIC_NAME_CHARS_MAX - _DIGEST_CHARS - 1]}_{digest}"


def popped_topic(group: str, topic: str, retry: str) -> str:
    """Return the topic that a message was popped from; batch acknowledgements name the topic that was requested."""
    if retry == FROM_TOPIC or topic.startswith(RETRY_TOPIC_PREFIX):
        return stored_topic_name(topic)
    return pop_retry_topic(group, topic)
