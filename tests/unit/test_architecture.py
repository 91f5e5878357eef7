"""Imports follow docs/architecture.md, its modules exist, and a plain client loads no heavy package."""

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
PACKAGE = SRC / "sparrow"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

EVERYTHING = "*"
SHARED = "shared"  # marks modules that every package may import

# Only these modules of `model` and `wire` may load NumPy or Arrow.
COLUMNAR = re.compile(r"sparrow\.wire\.(columns|queue_batches)(\.|$)")
HEAVY = ("numpy", "pyarrow")


def fenced(page: str, opening: str) -> str:
    """Return the text of the first fenced block that opens with exactly this line."""
    found = re.search(rf"^{re.escape(opening)}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found, f"docs/architecture.md has no block that opens with {opening}"
    return found[1]


def parse_packages(block: str) -> dict[str, frozenset[str]]:
    """`broker : store net` -> {"broker": {"store", "net"}}"""
    packages: dict[str, frozenset[str]] = {}
    for line in block.splitlines():
        package, colon, allowed = line.partition(":")
        assert colon, f"not a line of the form 'package : others': {line!r}"
        assert package.strip() not in packages, f"{package.strip()} is listed twice"
        packages[package.strip()] = frozenset(allowed.split())
    return packages


PACKAGES = parse_packages(fenced(PAGE, "```packages"))
SHARED_MODULES = frozenset(package for package, allowed in PACKAGES.items() if SHARED in allowed)


def module_name(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def package_of(path: Path) -> str:
    """Return the first part below sparrow: a folder's name, or a module's (`__init__` for sparrow itself)."""
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def imported_packages(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Yield (line, package) of every import of Sparrow. `package` is the base of relative imports."""
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


def may_import(package: str, other: str) -> bool:
    allowed = PACKAGES[package]
    return other == package or other in SHARED_MODULES or EVERYTHING in allowed or other in allowed


def is_attribute(name: str) -> bool:
    """Return whether `from sparrow import name` names a value and not a package."""
    return name not in PACKAGES and not (PACKAGE / name).exists() and not (PACKAGE / f"{name}.py").exists()


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def test_every_import_is_allowed() -> None:
    wrong = []
    for path in sources():
        importer = package_of(path)
        name = module_name(path)
        base = name if path.name == "__init__.py" else name.rpartition(".")[0]
        for line, other in imported_packages(path.read_text(encoding="utf-8"), base):
            if importer in PACKAGES and not is_attribute(other) and not may_import(importer, other):
                wrong.append(f"{path.relative_to(ROOT)}:{line}: {importer} may not import {other}")
    assert not wrong, "\n".join(wrong)


def test_every_package_has_a_line() -> None:
    unknown = {package_of(path) for path in sources()} - PACKAGES.keys()
    assert not unknown, f"no line for {sorted(unknown)} in the packages block of docs/architecture.md"


def test_packages_name_only_known_packages_and_form_no_cycle() -> None:
    for package, allowed in PACKAGES.items():
        unknown = allowed - PACKAGES.keys() - {EVERYTHING, SHARED}
        assert not unknown, f"{package} names {sorted(unknown)}, which have no line"
    graph = {package: allowed - {EVERYTHING, SHARED} for package, allowed in PACKAGES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_the_diagram_shows_the_allowed_imports() -> None:
    arrows: dict[str, set[str]] = {}
    for importer, imported in re.findall(r"(\w+) --> (\w+)", fenced(PAGE, "```mermaid")):
        arrows.setdefault(importer, set()).add(imported)

    def reachable(package: str) -> set[str]:
        direct = arrows.get(package, set())
        return direct.union(*map(reachable, direct)) if direct else set()

    drawn = {"cli", *reachable("cli")}
    assert drawn == PACKAGES.keys() - {"testing", "aio", "exports", "__init__", "__main__", *SHARED_MODULES}
    for package in drawn - {"cli"}:
        # These packages use `net` only through the client, and `console` the store only through Spark: no imports.
        hidden = {"net"} if package in {"bus", "spark", "operations", "console"} else set()
        hidden |= {"store"} if package == "console" else set()
        assert reachable(package) - hidden == PACKAGES[package], package


def test_every_module_on_the_page_exists() -> None:
    named = {name for name in re.findall(r"`([a-z_0-9]+(?:/[a-z_0-9]+)+)`", PAGE) if name.split("/")[0] in PACKAGES}
    assert len(named) > 40
    missing = [name for name in named if not (PACKAGE / name).is_dir() and not (PACKAGE / f"{name}.py").is_file()]
    assert not missing, f"docs/architecture.md names {sorted(missing)}"


def test_every_form_of_import_is_recognised() -> None:
    for source, packages in (
        ("import sparrow.net.access.tls", ["net"]),
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
    ):
        assert [package for _, package in imported_packages(source, package="sparrow.broker")] == packages, source


def light_modules() -> list[str]:
    """Return every module of `model` and `wire` except the columnar ones, and both flavours of the client."""
    names = [module_name(path) for package in ("model", "wire") for path in sorted((PACKAGE / package).rglob("*.py"))]
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
    # A fresh interpreter: in this one other tests have loaded both. Check module by module to name the cause.
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


def test_unit_tests_mirror_the_packages() -> None:
    folders = {
        path.parent.relative_to(ROOT / "tests" / "unit") for path in (ROOT / "tests" / "unit").rglob("test_*.py")
    }
    strange = [str(folder) for folder in folders if not (PACKAGE / folder).is_dir()]
    assert not strange, f"tests/unit has folders without a match in src/sparrow: {sorted(strange)}"
