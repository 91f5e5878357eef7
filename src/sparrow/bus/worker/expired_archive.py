"""The archive of expired events: Parquet files, `<folder>/published/day=2026-11-15/<name>.parquet`."""

from __future__ import annotations

import os
import uuid
from collections import defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sparrow.bus.sql.maintenance import ExpiredRows
from sparrow.extras import require


class ExpiredEventArchive:
    """Writes expired events to a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, table: str, expired: ExpiredRows) -> None:
        """Write rows to disk, one file for each day on which messages were added."""
        require("pyarrow", extra="tables", for_="the archive of expired events")
        import pyarrow as pa
        import pyarrow.parquet as pq

        added = expired.columns.index("Added")
        by_day: defaultdict[str, list[tuple[Any, ...]]] = defaultdict(list)
        for row in expired.rows:
            by_day[_moment(row[added]).strftime("%Y-%m-%d")].append(row)
        for day, rows in by_day.items():
            folder = self._folder / table / f"day={day}"
            folder.mkdir(parents=True, exist_ok=True)
            columns = {
                name: [_moment(value) if name in ("Added", "ExpiresAt") and value else value for value in values]
                for name, values in zip(expired.columns, zip(*rows, strict=True), strict=True)
            }
            schema = pa.schema([(name, _TYPES.get(name, pa.string)()) for name in expired.columns])
            final = folder / f"{uuid.uuid4().hex}.parquet"
            draft = final.with_suffix(".tmp")  # readers match *.parquet and never see a partial file
            with draft.open("wb") as file:
                pq.write_table(pa.table(columns, schema=schema), file, compression="zstd")
                file.flush()
                os.fsync(file.fileno())
            draft.rename(final)


def _int64() -> Any:
    import pyarrow as pa

    return pa.int64()


def _timestamp() -> Any:
    import pyarrow as pa

    return pa.timestamp("us", tz="UTC")


_TYPES = {
    "Id": _int64,
    "Retries": _int64,
    "Rounds": _int64,
    "Parked": _int64,
    "Added": _timestamp,
    "ExpiresAt": _timestamp,
}


def _moment(value: Any) -> datetime:
    moment = datetime.fromisoformat(value) if isinstance(value, str) else value
    assert isinstance(moment, datetime)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
