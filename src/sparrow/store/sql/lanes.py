"""Lanes: the dense sequences of ids by which messages and resend ranges are numbered.

A topic of a user's has three lanes of messages in each part, one for each priority, and three lanes of resend ranges.
The row of a lane in `hermes_lane` holds the next id.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from sparrow.model.priority import Priority
from sparrow.model.queue import PhysicalOffset
from sparrow.store.sql.schema.table_names import table_name

_ID_BITS = 40
"""The low bits of a physical offset hold the id, the high bits the lane: 10^12 messages in each of 8 million lanes."""

LaneKind = Literal["m", "r"]
"""Messages, or resend ranges."""


class Lane(NamedTuple):
    """One dense sequence of ids, and so one table."""

    number: int
    topic: str
    """The suffix of the topic's tables (see `table_names.table_suffix`)."""
    part: int
    kind: LaneKind
    priority: Priority

    @property
    def table(self) -> str:
        """The table whose rows the lane numbers."""
        return table_name("msg" if self.kind == "m" else "resend", self.topic, self.part, self.priority)

    def physical_offset(self, message_id: int) -> PhysicalOffset:
        """Return the lane and an id as one number, which takes the place of a physical offset."""
        return physical_offset_of(self.number, message_id)


def lane_of_row(number: int, topic: str, part: int, kind: str, priority: str) -> Lane:
    """Return the lane of a row in `hermes_lane`."""
    return Lane(number, topic, part, "m" if kind == "m" else "r", Priority[priority.upper()])


def physical_offset_of(lane: int, message_id: int) -> PhysicalOffset:
    """Pack the number of a lane and an id into a physical offset."""
    return PhysicalOffset(lane << _ID_BITS | message_id)


def split_physical_offset(physical_offset: int) -> tuple[int, int]:
    """Return the number of the lane and the id in a physical offset."""
    return physical_offset >> _ID_BITS, physical_offset & ((1 << _ID_BITS) - 1)
