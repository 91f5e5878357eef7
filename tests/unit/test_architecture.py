"""The imports in src/sparrow are those that docs/architecture.md allows, and a plain client stays light."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
PACKAGE = SRC / "sparrow"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

EVERYTHING = "*"
GROUND = "ground"

# Only these may load NumPy or Arrow when imported: wire/columns and wire/queue_batches.
COLUMNAR = re.compile(r"sparrow\.wire\.(columns|queue_batches)(\.|$)")
HEAVY = ("numpy", "pyarrow")


def fenced(page: str, opening: str) -> str:
    """The text of the first fenced block that opens with exactly this line."""
    found = re.search(rf"^{re.escape(opening)}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found, f"docs/architecture.md has no block that opens with {opening}"
    return found[1]


def parse_rooms(block: str) -> dict[str, frozenset[str]]:
    """`broker : store net` -> {"broker": {"store", "net"}}"""
    rooms: dict[str, frozenset[str]] = {}
    for line in block.splitlines():
        room, colon, allowed = line.partition(":")
        assert colon, f"not a line of the form 'room : others': {line!r}"
        assert room.strip() not in rooms, f"{room.strip()} is listed twice"
        rooms[room.strip()] = frozenset(allowed.split())
    return rooms


ROOMS = parse_rooms(fenced(PAGE, "```rooms"))
GROUND_FLOOR = frozenset(room for room, allowed in ROOMS.items() if GROUND in allowed)


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(path: Path) -> str:
    """The first part below the package: a folder's name, or a module's (`__init__` for the package itself)."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_rooms(source: str, package: str) -> Iterator[tuple[int, str]]:
    """(line, room) of every import of ours, wherever it stands. `package` is what relative imports start from."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                kept = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*kept, base] if base else kept)
            names = [f"{base}.{alias.name}" for alias in node.names] if base == "sparrow" else [base]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "sparrow" and rest:
                yield node.lineno, rest.partition(".")[0]


def may_import(room: str, other: str) -> bool:
    allowed = ROOMS[room]
    return other == room or other in GROUND_FLOOR or EVERYTHING in allowed or other in allowed


def is_attribute(name: str) -> bool:
    """`from sparrow import __version__` names no room."""
    return name not in ROOMS and not (PACKAGE / name).exists() and not (PACKAGE / f"{name}.py").exists()


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_every_import_is_one_the_drawing_allows() -> None:
    wrong = []
    for path in sources():
        room = room_of(path)
        name = module_name(path)
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for line, other in imported_rooms(path.read_text(encoding="utf-8"), package):
            if room in ROOMS and not is_attribute(other) and not may_import(room, other):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {room} may not import {other}")
    assert not wrong, "\n".join(wrong)


def test_every_room_in_the_source_is_on_the_page() -> None:
    unknown = {room_of(path) for path in sources()} - ROOMS.keys()
    assert not unknown, f"no line for {sorted(unknown)} in the rooms block of docs/architecture.md"


def test_every_room_on_the_page_is_in_the_drawing_and_the_other_way_round() -> None:
    drawing = fenced(PAGE, "```").replace('an arrow reads "may import"', "")
    drawn = set(re.findall(r"[a-z]+", drawing)) - {"everything"}
    undrawn = {"testing", "aio", "__init__", "__main__", *GROUND_FLOOR}
    assert drawn == ROOMS.keys() - undrawn


def test_rooms_name_only_rooms_and_form_no_circle() -> None:
    for room, allowed in ROOMS.items():
        unknown = allowed - ROOMS.keys() - {EVERYTHING, GROUND}
        assert not unknown, f"{room} names {sorted(unknown)}, which have no line"
    graph = {room: allowed - {EVERYTHING, GROUND} for room, allowed in ROOMS.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError


@pytest.mark.parametrize(
    ("source", "rooms"),
    [
        ("import sparrow.net.tls", ["net"]),
        ("import sparrow", []),
        ("import os, sparrow.wire as w", ["wire"]),
        ("from sparrow.store.log import segment", ["store"]),
        ("from sparrow import broker, __version__", ["broker", "__version__"]),
        ("from . import pull", ["broker"]),
        ("from .pull import x", ["broker"]),
        ("from ..store import spi", ["store"]),
        ("from .. import clock", ["clock"]),
        ("def f():\n    from sparrow.cli import main", ["cli"]),
        ("from sparrowhawk.net import x", []),
    ],
)
def test_imports_are_seen_however_they_are_written(source: str, rooms: list[str]) -> None:
    assert [room for _, room in imported_rooms(source, package="sparrow.broker")] == rooms


def light_modules() -> list[str]:
    """Every module of `model` and `wire` but the columnar ones, and what both flavours of the client import."""
    names = [module_name(path) for room in ("model", "wire") for path in sorted((PACKAGE / room).rglob("*.py"))]
    return [
        *(name for name in names if not COLUMNAR.match(name)),
        "sparrow",
        "sparrow.aio",
        "sparrow.client",
        "sparrow.client.aio",
    ]


def test_a_plain_client_loads_neither_numpy_nor_arrow() -> None:
    modules = light_modules()
    assert {"sparrow.wire.record", "sparrow.wire.frame"} <= set(modules)
    # A fresh interpreter: in this one other tests have long loaded both. Module by module, to name the culprit.
    script = (
        "import importlib, sys\n"
        f"for name in {modules!r}:\n"
        "    importlib.import_module(name)\n"
        f"    loaded = [heavy for heavy in {HEAVY!r} if heavy in sys.modules]\n"
        "    if loaded: sys.exit(f'importing {name} loads {loaded}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(SRC)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
