"""The views of all lanes of a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from sparrow.model.queue import Queue, QueueOffset
from sparrow.store.sql.append.batch_ids import AssignedIds
from sparrow.store.sql.lanes import Lane
from sparrow.store.sql.read.lane_view import LaneView
from sparrow.store.sql.row_codec import NewRow


class LaneViews:
    """What this process knows of the lanes."""

    def __init__(self, store_host: bytes, on_growth: Callable[[Queue, QueueOffset], None]) -> None:
        self._store_host, self._on_growth = store_host, on_growth
        self.by_number: dict[int, LaneView] = {}

    def view(self, lane: Lane, queue: Queue) -> LaneView:
        """Return the view of a lane, a new one if the lane has just become known."""
        view = self.by_number.get(lane.number)
        if view is None:
            view = self.by_number[lane.number] = LaneView(lane, queue, self._store_host)
        return view

    def all(self) -> list[LaneView]:
        """Return the views of all lanes."""
        return list(self.by_number.values())

    def replace_lanes(self, lanes: Mapping[int, tuple[Lane, Queue]]) -> None:
        """Keep views of exactly these lanes."""
        for number in self.by_number.keys() - lanes.keys():
            del self.by_number[number]
        for number in lanes.keys() - self.by_number.keys():
            self.view(*lanes[number])

    def cache_stored(self, lane: Lane, ids: AssignedIds, rows: Sequence[NewRow]) -> None:
        """Cache messages that this process has just stored, and show them to readers."""
        view = self.by_number.get(lane.number)
        if view is None:  # its topic was deleted meanwhile
            return
        view.cache_new(ids, rows)
        self.advance(lane, ids.base_id + len(rows))

    def advance(self, lane: Lane, next_id: int) -> None:
        """Show readers the ids of a lane up to `next_id`, and report the growth of its queue."""
        view = self.by_number.get(lane.number)
        if view is not None and view.advance(next_id):
            self._on_growth(view.queue, view.bounds.end)

    def forget(self) -> None:
        """Drop everything after a restart of the server."""
        for view in self.by_number.values():
            view.forget()
