"""The health of a client: why it cannot do its work, since when, and what to do about it.

1. A finding begins with the first failure of its kind and ends with the first success. Until then a program can ask for
   it (`producer.health()`, `consumer.health()`).
2. It is logged at WARNING when it begins, again after 1, 2, 4 … minutes while it lasts, at most 10 minutes apart, and
   at INFO when it is over.
3. Failures of several queues for one cause are one finding, which ends when the last of them works again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Hashable
from datetime import UTC, datetime
from difflib import get_close_matches
from typing import Literal

import msgspec

from sparrow.log_intervals import LogIntervals
from sparrow.model.errors import ConnectionLost, RequestTimeout, UnknownTopic, WrongServer
from sparrow.model.health import Finding, Health
from sparrow.model.topic import is_system_topic
from sparrow.wire.codes import ResponseCode
from sparrow.wire.error_codes import RemoteRefused, RemoteUnavailable

log = logging.getLogger(__name__)

Cause = Literal[
    "unreachable", "no answer", "wrong server", "unknown topic", "not permitted", "refused filter", "failed request"
]
"""The kinds of findings."""


_REPORTED_BY_SESSION: frozenset[Cause] = frozenset({"unreachable", "wrong server"})
"""What the session reports for each address, so that the requests which fail with it need not."""

_Key = tuple[Cause, str]
"""A cause and its subject: the topic, else the address, else nothing."""


class _Lasting:
    """A finding that lasts, and what is affected by it."""

    __slots__ = ("finding", "parts", "since_s")

    def __init__(self, finding: Finding, now_s: float) -> None:
        self.finding, self.since_s = finding, now_s
        self.parts: set[Hashable] = set()


class HealthMonitor:
    """The findings of the clients that share one session."""

    def __init__(self, client: str, now_s: Callable[[], float] = time.monotonic) -> None:
        self._client, self._now_s = client, now_s
        self._intervals = LogIntervals(now_s)
        self.lasting: dict[_Key, _Lasting] = {}
        """Empty while all is well, so that a success need not look further."""

    def current(self) -> Health:
        """Return the findings of now. Any thread may call it."""
        findings = tuple(lasting.finding for lasting in list(self.lasting.values()))
        return Health(not findings, findings)

    def is_due(self, cause: Cause, subject: str) -> bool:
        """Return whether a report about a topic or an address would be logged: a costly text is made only then."""
        return not self._intervals.is_waiting((cause, subject))

    def report(
        self, cause: Cause, text: str, *, address: str | None = None, topic: str | None = None, part: Hashable = None
    ) -> None:
        """Note a failure, and log it if it is new or has lasted until its next turn. `part`: what is affected."""
        key = (cause, topic or address or "")
        lasting = self.lasting.get(key)
        if lasting is None:
            finding = Finding(cause, text, datetime.now(UTC), address, topic)
            lasting = self.lasting[key] = _Lasting(finding, self._now_s())
        lasting.parts.add(part)
        if self._intervals.is_due(key):
            lasting.finding = msgspec.structs.replace(lasting.finding, text=text, address=address)
            log.warning("client %(client)s: %(text)s", {"client": self._client, "text": text})

    def report_error(self, error: Exception, what: str, *, address: str, part: Hashable = None) -> None:
        """Note an error of an address. `what`: what cannot be done, such as "broker x cannot be reached"."""
        cause = cause_of(error)
        self.report(cause, f"{what}: {error}{_remedy(cause)}", address=address, part=part)

    def report_request(
        self, error: Exception, what: str, *, part: Hashable, address: str | None = None, topic: str | None = None
    ) -> None:
        """Note the error of a request, unless the session has reported its address."""
        cause = cause_of(error)
        if cause not in _REPORTED_BY_SESSION:
            self.report(cause, f"{what}: {error}{_remedy(cause)}", address=address, topic=topic, part=part)

    def clear(self, subject: str, *causes: Cause, part: Hashable = None) -> None:
        """Note a success with a topic or an address: findings of these causes, or of any, are over for this part."""
        for (cause, about), lasting in list(self.lasting.items()):
            if about == subject and (not causes or cause in causes) and part in lasting.parts:
                lasting.parts.remove(part)
                if not lasting.parts:
                    self._end(cause, about)

    def keep_addresses(self, needed: Container[str]) -> None:
        """End the findings about all other addresses: they no longer matter."""
        for cause, about in list(self.lasting):
            if ":" in about and about not in needed:
                self._end(cause, about)

    def _end(self, cause: Cause, subject: str) -> None:
        lasting = self.lasting.pop((cause, subject))
        self._intervals.end((cause, subject))
        log.info(
            "client %(client)s: over after %(seconds)d s: %(text)s",
            {"client": self._client, "seconds": self._now_s() - lasting.since_s, "text": lasting.finding.text},
        )


def cause_of(error: Exception) -> Cause:
    """Return the kind of finding that an error stands for."""
    if isinstance(error, ConnectionLost):
        return "unreachable"
    if isinstance(error, RequestTimeout):
        return "no answer"
    if isinstance(error, WrongServer):
        return "wrong server"
    if isinstance(error, UnknownTopic):
        return "unknown topic"
    if isinstance(error, RemoteRefused | RemoteUnavailable):
        if error.code == ResponseCode.NO_PERMISSION:
            return "not permitted"
        if error.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED:
            return "refused filter"
    return "failed request"


_REMEDIES: dict[Cause, str] = {
    "not permitted": "check credentials=, and whether the token is of the right kind and not revoked",
    "refused filter": "subscribe with another expression",
}


def _remedy(cause: Cause) -> str:
    remedy = _REMEDIES.get(cause)
    return f"; {remedy}" if remedy else ""


def nearest_topics(topic: str, known: list[str]) -> str:
    """Return a question that names the topics with a similar name; empty without one."""
    names = [name for name in known if not is_system_topic(name) and not name.startswith("%")]
    near = get_close_matches(topic, names, 3) or [name for name in names if name.lower() == topic.lower()]
    return f"did you mean {' or '.join(map(repr, near))}?" if near else ""
