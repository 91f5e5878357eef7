"""A database with messages of a bus in several states, as a stopped application leaves it."""

from __future__ import annotations

from typing import Any

from sparrow.bus import EventBus, EventStatus
from sparrow.bus.sql.claims import claim_due, load_claimed
from sparrow.bus.sql.completion import mark_failed


class BusMessages:
    """One message that waits, two that failed and a delayed one."""

    def __init__(self, url: str) -> None:
        self.url = url
        bus = EventBus(url, "memory://", app="shop")
        bus.prepare()
        self.waiting = bus.publish("order.created", {"n": 1}, tenant="north")
        self.failed = [bus.publish("order.paid", {"n": n}) for n in (2, 3)]
        self.later = bus.publish("order.created", {"n": 4}, delay=3600)

        def fail(db: Any) -> None:
            sql = bus.core.context.sql_of(db)
            claims = [
                each for each in claim_due(db, sql, 0, "", 9, owner="x", lease_s=60) if each.message_id != self.waiting
            ]
            load_claimed(db, sql, 0, claims)
            for each in claims:
                mark_failed(db, sql, 0, each, f"Unavailable-->no broker {each.message_id}", 86_400)
            sql.change(db, f'UPDATE {sql.names.queue} SET "LockedBy" = NULL WHERE "LockedBy" = ?', "x")

        bus.database.run_blocking(fail)
        self._bus = bus

    def status(self, number: int) -> EventStatus:
        return self._bus.operations.get("published", number).status

    def close(self) -> None:
        self._bus.stop()
