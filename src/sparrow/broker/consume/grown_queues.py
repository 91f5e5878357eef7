"""The queues of a topic that have grown, the newest first, for pops that cannot examine all queues of a wide topic."""

from __future__ import annotations

from collections.abc import Iterator


class GrownQueues:
    """The growth of one topic since somebody asked for it. Each growth has a number, in rising order."""

    def __init__(self) -> None:
        self.number = 0
        """The number of the last growth."""
        self._numbers: dict[int, int] = {}
        """The last growth of each queue, in their order."""

    def add(self, queue_id: int) -> None:
        """Note that a queue has grown."""
        self.number += 1
        self._numbers.pop(queue_id, None)
        self._numbers[queue_id] = self.number

    def since(self, number: int) -> Iterator[int]:
        """Yield the ids of the queues that have grown after this growth, the newest first."""
        for queue_id, grown in reversed(self._numbers.items()):
            if grown <= number:
                return
            yield queue_id
