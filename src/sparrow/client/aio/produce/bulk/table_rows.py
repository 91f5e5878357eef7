"""The rows of Arrow tables as batches: every row is a message."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow as pa

from sparrow.client.aio.produce.bulk.bulk_sender import BATCH_BYTES_MAX, BATCH_MESSAGES_MAX, RowBatch
from sparrow.model.errors import Refused
from sparrow.model.queue import QueueRef
from sparrow.wire.columns.batch import encode_batches

_ENCODED_BYTES = 8 * 1024 * 1024
"""How much of a table is encoded at a time: it is held in memory, and the event loop waits for it."""


class MessageColumns(NamedTuple):
    """The columns of messages, all of one length."""

    body: Any
    keys: Any
    tags: Any
    properties: Any

    def slice(self, at: int, rows: int) -> MessageColumns:
        """Return some rows."""
        return MessageColumns(*(column if column is None else column.slice(at, rows) for column in self))


def message_columns(
    table: Any, *, body: str, keys: str | None, tags: str | None, properties: str | None
) -> MessageColumns:
    """Return the columns of an Arrow table, a record batch or a pandas frame that messages are made of."""
    if not isinstance(table, pa.Table | pa.RecordBatch):
        if not hasattr(table, "columns"):
            raise Refused(f"a {type(table).__name__} is no table: pass an Arrow table, a record batch or a DataFrame")
        table = pa.Table.from_pandas(table, preserve_index=False)
    names = table.schema.names
    if body not in names:
        raise Refused(
            f"the table has no column {body!r} for the bodies, only {', '.join(map(repr, names)) or 'none'}: "
            "name the column of the bodies with body=..."
        )

    def optional(name: str | None) -> Any:
        return table.column(name) if name is not None and name in names else None

    return MessageColumns(table.column(body), optional(keys), optional(tags), optional(properties))


def encode_table(columns: MessageColumns, queue: QueueRef | None) -> Iterator[RowBatch]:
    """Encode all rows, in order, into the bodies of requests."""
    rows = len(columns.body)
    row_bytes = sum(column.nbytes for column in columns if column is not None) / max(rows, 1)
    step = max(1, int(_ENCODED_BYTES / max(row_bytes, 1)))
    first = 0
    for at in range(0, rows, step):
        body, keys, tags, properties = columns.slice(at, step)
        for batch in encode_batches(
            body,
            keys=keys,
            tags=tags,
            properties=properties,
            bytes_max=BATCH_BYTES_MAX,
            messages_max=BATCH_MESSAGES_MAX,
        ):
            yield RowBatch(batch.data, range(first, first + batch.count), queue)
            first += batch.count
