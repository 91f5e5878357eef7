"""Which queue a sent message goes to, and which topics only the broker writes to."""

from __future__ import annotations

from random import randrange

from sparrow.broker.produce.lanes import has_lanes, lane_queue
from sparrow.model.errors import NotPermitted, Refused
from sparrow.model.queue import Queue
from sparrow.model.topic import Topic
from sparrow.wire.headers import SendMessage


def broker_only_topic(topic: str) -> NotPermitted:
    """Return the error of a send to a topic that only the broker writes to."""
    return NotPermitted(f"sending to topic {topic!r}", "only the broker itself writes to it")


def choose_queue(request: SendMessage, topic: Topic) -> Queue:
    """Return the queue in the request, or a random one; in a topic with lanes, the lane of the message's priority."""
    if not topic.is_writable:
        raise NotPermitted(f"sending to topic {topic.name!r}", "the topic has no write permission")
    queue_id, in_lanes = request.queue_id, has_lanes(topic)
    if queue_id < 0:
        queue_id = randrange(topic.write_queues)
    elif queue_id >= topic.write_queues and (in_lanes or queue_id >= topic.read_queues):
        count = topic.write_queues if in_lanes else max(topic.write_queues, topic.read_queues)
        raise Refused(f"topic {topic.name!r} has no queue {queue_id}: its queues are 0 to {count - 1}")
    queue = Queue(topic.name, queue_id)
    return lane_queue(queue, request.properties) if in_lanes else queue
