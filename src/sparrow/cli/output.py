"""What commands print: JSON for programs, tables for people, and tab-separated rows where no terminal reads them.

1. Results go to stdout, everything else to stderr.
2. Text of users (bodies, keys, names) is printed as text: neither rich nor the terminal interprets it.
3. Nothing is cut: a table wraps in a terminal, and a row stays on one line elsewhere.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Annotated

import msgspec
import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]

_CONTROL_CHARACTER = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LINE_CHARACTER = re.compile(r"[\t\n]")


def print_json(value: object) -> None:
    """Print a value as one indented JSON document."""
    typer.echo(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def print_json_line(value: object) -> None:
    """Print a value as one line of JSON, for streams."""
    typer.echo(msgspec.json.encode(value).decode())


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print rows as a table in a terminal, and separated by tabs elsewhere. Numbers are aligned to the right."""
    cells = list(rows)
    if not sys.stdout.isatty():
        for row in (columns, *cells):
            typer.echo("\t".join(_LINE_CHARACTER.sub(" ", plain(cell)) for cell in row))
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        is_number = bool(cells) and all(isinstance(row[index], int | float | None) for row in cells)
        table.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in cells:
        table.add_row(*(Text(shown(cell)) for cell in row))
    Console().print(table)


def print_fields(fields: Mapping[str, object]) -> None:
    """Print one `name: value` a line; fields without a value are left out."""
    for name, value in fields.items():
        if value not in (None, "", [], {}):
            typer.echo(f"{plain(name)}: {shown(value)}")


def print_note(text: str) -> None:
    """Print a sentence about the result to stderr."""
    typer.echo(text, err=True)


def shown(value: object) -> str:
    """Return a value for people: numbers with separators, yes and no, lists with spaces."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return plain(value)


def plain(value: object) -> str:
    """Return a value as text that cannot control a terminal."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(map(plain, value))
    return escape_controls(str(value))


def escape_controls(text: str) -> str:
    r"""Replace control characters, except tabs and line ends, by `\x1b` and the like."""
    return _CONTROL_CHARACTER.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


def format_time(ms: int | None) -> str:
    """Return a time as local ISO 8601 with its offset from UTC; empty for a time that is not known."""
    if ms is None or ms <= 0:
        return ""
    return datetime.fromtimestamp(ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")


def format_duration(ms: float | None) -> str:
    """Return a duration with its two largest units, such as `2 h 5 min`; empty if it is not known."""
    if ms is None:
        return ""
    if ms < 1_000:
        return f"{ms:.0f} ms"
    seconds = int(ms // 1000)
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    parts: list[str] = []
    for unit, size in units:
        count, seconds = divmod(seconds, size)
        if count or parts:
            parts.append(f"{count} {unit}")
    return " ".join(part for part in parts[:2] if not part.startswith("0 "))


def format_bytes(count: float) -> str:
    """Return a size in the unit that fits, such as `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:,.0f} B" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    return f"{count:,.1f} TiB"


def confirm(question: str, *, yes: bool) -> None:
    """Ask before something that cannot be undone. Anything but yes, or no answer at all, aborts the command."""
    if not yes:
        typer.confirm(question, abort=True, err=True)
