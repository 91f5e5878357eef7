"""Warnings of brokers that members of a consumer group differ. RocketMQ's brokers send none."""

from __future__ import annotations

import logging

from sparrow.log_intervals import LogIntervals
from sparrow.wire import bodies
from sparrow.wire.bodies import GroupConflict, GroupConflicts

log = logging.getLogger(__name__)


class GroupConflictLog:
    """Logs a conflict once, however many brokers report it, and again when it changes or lasts."""

    def __init__(self) -> None:
        self._intervals = LogIntervals()
        self._reported: dict[str, dict[str, GroupConflict]] = {}
        """By broker, then by group: what the last response to a heartbeat reported."""

    def log(self, broker: str, body: bytes | memoryview) -> None:
        """Log what a broker's response to a heartbeat reports."""
        before = self._reported.get(broker, {})
        conflicts = bodies.read(GroupConflicts, body).conflicts if body else []
        self._reported[broker] = {conflict.group: conflict for conflict in conflicts}
        for conflict in conflicts:
            if self._intervals.is_due(conflict.group, (conflict.report, conflict.other_report)):
                log.warning(
                    "this consumer of group %(group)s reads %(report)s, but client %(other_client)s of the same group"
                    " reads %(other_report)s; messages are skipped until all members have the same subscriptions"
                    " and mode",
                    {
                        "group": conflict.group,
                        "report": conflict.report,
                        "other_client": conflict.other_client_id,
                        "other_report": conflict.other_report,
                    },
                )
        for group in before:
            if not any(group in reported for reported in self._reported.values()):
                self._intervals.end(group)
                log.info("all members of group %(group)s have the same subscriptions again", {"group": group})
