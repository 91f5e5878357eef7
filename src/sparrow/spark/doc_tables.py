"""The tables of docs/spark.md, generated from the option and column tables in the code.

`python -m sparrow.spark.doc_tables docs/spark.md` updates the page. A table stands between `<!-- NAME -->` and `<!--
end of NAME -->`. A test compares the page with the output of this module.
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
    "body": "As sent; decompressed unless `decompress=false`. The type `string` is allowed too.",
    "keys": "All keys of the message, separated by blanks.",
    "msg_id": "The unique id that the producer assigned.",
    "properties": "All properties, including those of the system.",
    "properties_raw": "All properties as one string, exactly as stored. Faster to read than the map.",
    "broker": "The name of the broker that holds the queue.",
    "queue_offset": "The offset in the queue.",
    "physical_offset": "The offset in the broker's commit log.",
    "born_timestamp": "When it was sent, by the producer's clock.",
    "store_timestamp": "When it was stored, by the broker's clock.",
    "reconsume_times": "How often a consumer has sent it back for a retry.",
    "decode_error": "Why the body could not be decompressed; null if it could.",
}


def options_table(options: Sequence[Option]) -> str:
    """Return a Markdown table of options."""
    rows = ["| Option | Default | |", "| --- | --- | --- |"]
    for option in options:
        default = option.shown_default if option.shown_default is not None else str(option.default)
        rows.append(f"| `{option.name}` | {default} | {_cell(option.doc)} |")
    return "\n".join(rows)


def columns_table() -> str:
    """Return a Markdown table of the columns of a topic."""
    rows = ["| Column | Type | In the default schema | |", "| --- | --- | --- | --- |"]
    for name, kind in COLUMN_TYPES.items():
        rows.append(
            f"| `{name}` | {kind} | {'yes' if name in DEFAULT_COLUMNS else ''} | {_COLUMN_NOTES.get(name, '')} |"
        )
    return "\n".join(rows)


def kafka_columns() -> str:
    """Return the list of columns with `kafkaSchema=true`."""
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
    """Return the page with freshly generated tables."""
    for name, make in TABLES.items():
        opening, closing = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        before, _, rest = page.partition(opening)
        _, found, after = rest.partition(closing)
        if not found:
            raise ValueError(
                f"the page has no markers for the table {name!r}: add <!-- {name} --> and <!-- end of {name} -->"
            )
        page = f"{before}{opening}{make()}{closing}{after}"
    return page


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(fill_tables(path.read_text()))
