"""The report about a topic that does not exist, with the topics that have a similar name."""

from __future__ import annotations

from collections.abc import Hashable

from sparrow.client.aio.connection.session import ClientSession
from sparrow.client.health import nearest_topics
from sparrow.model.errors import SparrowError, UnknownTopic
from sparrow.wire import bodies
from sparrow.wire.codes import RequestCode


async def report_unknown_topic(
    session: ClientSession, error: UnknownTopic, topic: str, what: str, *, part: Hashable, otherwise: str
) -> None:
    """Report that something cannot be done because a topic does not exist.

    `what`: what cannot be done. `otherwise`: what helps besides creating the topic.

    The name server is asked for similar names only if the report is logged; the error gets them as a note, too.
    """
    near = ""
    if session.health.is_due("unknown topic", topic):
        near = await _similar_names(session, topic)
    if near:
        error.add_note(near)
    hint = f" ({near})" if near else ""
    text = f"{what}: topic {topic!r} does not exist{hint}: create it with Admin.create_topic, or {otherwise}"
    session.health.report("unknown topic", text, topic=topic, part=part)


async def _similar_names(session: ClientSession, topic: str) -> str:
    try:
        answer = await session.invoke_name_server(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        return nearest_topics(topic, bodies.read(bodies.TopicList, answer.body).topic_list)
    except SparrowError:  # not permitted, or not now: the report does without them
        return ""
