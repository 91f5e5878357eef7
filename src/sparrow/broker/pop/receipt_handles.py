"""What pop says about messages in words: handles, the lists of offsets of an answer, and names of retry topics. Pure.

    handle            start popTime invisibleTime reviveQueue retry brokerName queueId [offset]
    start offsets     retry queueId start                    joined by `;`, one for each queue read
    message offsets   retry queueId offset,offset,...        the same
    order counts      retry queueId n  or  retry qo<queueId>%<offset> n

`retry` is 0 for a topic itself and 1 for the group's retry topic of it. A client makes the handle of a message from the
lists, and gives it back with its acknowledgement.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import md5
from typing import NamedTuple

from sparrow.model.errors import BadRequest
from sparrow.model.protocol import RETRY_TOPIC_PREFIX
from sparrow.model.topic import TOPIC_NAME_CHARS_MAX

FIFO_REVIVE_QUEUE = 999
"""In place of a revive queue: the message was popped in order."""
FROM_TOPIC, FROM_RETRY_TOPIC = "0", "1"
_FIELDS_MIN = 7
_DIGEST_CHARS = 32


class ReceiptHandle(NamedTuple):
    """What an acknowledgement is about. (Its queue and offset are said beside it.)"""

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
    raise BadRequest("the handle", "extraInfo", f"is {text[:120]!r}, which no pop has given out")


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
    """How often each message was handed out before. Clients of before 5.1 look for the queue's count only."""
    if not any(counts.values()):
        return []
    by_offset = [f"{FROM_TOPIC} qo{queue_id}%{offset} {count}" for offset, count in counts.items()]
    return [f"{FROM_TOPIC} {queue_id} {min(counts.values())}", *by_offset]


def pop_begun_mark(group: str, topic: str) -> str:
    """Says when the group began to pop the topic, at the latest: what is meant for it goes where it pops from."""
    return f"pop.begun {group} {topic}"


def pop_retry_topic(group: str, topic: str) -> str:
    """Where a group's messages of a topic go that were not acknowledged in time."""
    return stored_topic_name(f"{RETRY_TOPIC_PREFIX}{group}_{topic}")


def stored_topic_name(topic: str) -> str:
    """Clients put retry topics together themselves, and may exceed what a topic's name may have: those are cut."""
    if len(topic) <= TOPIC_NAME_CHARS_MAX or not topic.startswith(RETRY_TOPIC_PREFIX):
        return topic
    digest = md5(topic.encode(), usedforsecurity=False).hexdigest()
    assert len(digest) == _DIGEST_CHARS
    return f"{topic[: TOPIC_NAME_CHARS_MAX - _DIGEST_CHARS - 1]}_{digest}"


def popped_topic(group: str, topic: str, retry: str) -> str:
    """The topic a message was popped from, which a batch of acknowledgements names by the one it was popped for."""
    if retry == FROM_TOPIC or topic.startswith(RETRY_TOPIC_PREFIX):
        return stored_topic_name(topic)
    return pop_retry_topic(group, topic)
