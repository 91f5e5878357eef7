"""How far the messages of a queue were handed out to each group, and the resets that a group has not got yet.

In memory only: after a restart of the broker, a group is where it has committed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sparrow.model.queue import Queue

GroupQueue = tuple[str, Queue]
"""A group and a queue that it reads."""


@dataclass
class GroupPositions:
    """The positions of all groups on one broker."""

    handed_out: dict[GroupQueue, int] = field(default_factory=dict)
    """The next offset after the last response to the group."""
    resets: dict[GroupQueue, int] = field(default_factory=dict)
    """The offset of a reset, until a pull of the queue is answered with it.

    Until then commits of the group are ignored: its members do not know of the reset.
    """

    def reset(self, group: str, queue: Queue, offset: int) -> None:
        self.resets[group, queue] = offset
        self.handed_out.pop((group, queue), None)

    def drop_resets(self, group: str, topic: str) -> None:
        """Drop the resets of a group that pops the topic: pops read from the committed offset."""
        self._forget(self.resets, lambda key: key[0] == group and key[1].topic == topic)

    def forget_topic(self, topic: str) -> None:
        for table in (self.handed_out, self.resets):
            self._forget(table, lambda key: key[1].topic == topic)

    def forget_group(self, group: str) -> None:
        for table in (self.handed_out, self.resets):
            self._forget(table, lambda key: key[0] == group)

    def _forget(self, table: dict[GroupQueue, int], is_gone: Callable[[GroupQueue], bool]) -> None:
        for key in list(filter(is_gone, table)):
            del table[key]
