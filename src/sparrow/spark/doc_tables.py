"""The tables of docs/spark.md, made from the code that reads the options.

`python -m sparrow.spark.doc_tables docs/spark.md` puts them in. In the page a table stands between `<!-- NAME -->` and
`<!-- end of NAME -->`. A test compares it with what this makes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from sparrow.spark.options import CLIENT_OPTIONS, Option
from sparrow.spark.sink.options import SINK_OPTIONS
from sparrow.spark.source.options import SOURCE_OPTIONS
from sparrow.spark.source.schema import COLUMN_TYPES, DEFAULT_COLUMNS, KAFKA_COLUMN_TYPES

_COLUMN_NOTES = {
    "body": "As sent; decompressed unless `decompress=false`. `string` may be asked for instead.",
    "keys": "All keys of the message, with blanks between.",
    "msg_id": "The id its producer gave it.",
    "properties": "All of them, the system's too.",
    "properties_raw": "The same as one string, as it is stored: quicker, and every byte of it.",
    "broker": "The name of the broker that has the queue.",
    "queue_offset": "Its place in the queue.",
    "physical_offset": "Its place in the broker's log.",
    "born_timestamp": "When it was sent, by its producer's clock.",
    "store_timestamp": "When it was stored, by its broker's.",
    "reconsume_times": "How often it was given back.",
}


def options_table(options: Sequence[Option]) -> str:
    rows = ["| Option | Default | |", "| --- | --- | --- |"]
    for option in options:
        default = option.shown_default if option.shown_default is not None else str(option.default)
        rows.append(f"| `{option.name}` | {default} | {_cell(option.doc)} |")
    return "\n".join(rows)


def columns_table() -> str:
    rows = ["| Column | Type | Unless a schema is given | |", "| --- | --- | --- | --- |"]
    for name, kind in COLUMN_TYPES.items():
        rows.append(
            f"| `{name}` | {kind} | {'yes' if name in DEFAULT_COLUMNS else ''} | {_COLUMN_NOTES.get(name, '')} |"
        )
    return "\n".join(rows)


def kafka_columns() -> str:
    return ", ".join(f"`{name}` {kind}" for name, kind in KAFKA_COLUMN_TYPES.items()) + "."


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


TABLES: dict[str, Callable[[], str]] = {
    "columns": columns_table,
    "columns of Kafka": kafka_columns,
    "options of the source": lambda: options_table(SOURCE_OPTIONS),
    "options of the sink": lambda: options_table(SINK_OPTIONS),
    "options of the client": lambda: options_table(CLIENT_OPTIONS),
}


def fill_tables(page: str) -> str:
    """The page with its tables as the code has them."""
    for name, make in TABLES.items():
        opening, closing = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, _, rest = page.partition(opening)
        _, found, after = rest.partition(closing)
        if not found:
            raise ValueError(f"the page has no place for {name!r}")
        page = f"{before}{opening}{make()}{closing}{after}"
    return page


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(fill_tables(path.read_text()))
