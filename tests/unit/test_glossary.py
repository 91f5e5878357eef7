"""One noun has one meaning: class names, module names and docs/glossary.md agree."""

import ast
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SRC = ROOT / "src"
PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")

# Nouns that end in -ing and say what a module holds.
NOUNS_IN_ING = {
    "encoding",
    "filtering",
    "naming",
    "partitioning",
    "routing",
    "signing",
    "staging",
    "testing",
    "training",
    "trimming",
}
# Words that say nothing about the content of a module (or that RocketMQ and Kafka have another word for).
BARE_WORDS = {
    "ahead",
    "heads",
    "helpers",
    "hold",
    "later",
    "misc",
    "places",
    "turns",
    "unfiled",
    "util",
    "utils",
    "words",
}


def _section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"docs/glossary.md has no section {title!r}"
    return found[1]


def _rows(section: str) -> list[list[str]]:
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def _public_classes() -> dict[str, set[str]]:
    homes: dict[str, set[str]] = defaultdict(set)
    for path in SRC.rglob("*.py"):
        module = ".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__")
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(module)
    return homes


def test_two_public_classes_share_a_name_only_with_a_reason_in_the_glossary() -> None:
    shared = {name: modules for name, modules in _public_classes().items() if len(modules) > 1}
    listed = {
        name.strip("`"): set(re.findall(r"`([\w.]+)`", modules))
        for name, modules, reason in _rows(_section("Class names that are used twice"))
        if reason
    }
    assert shared == listed


def test_every_noun_of_the_glossary_has_one_line() -> None:
    nouns = [row[0].lower() for row in _rows(_section("Nouns"))]
    assert sorted(nouns) == sorted(set(nouns))
    assert all(row[1] for row in _rows(_section("Nouns")))


def test_modules_are_named_by_nouns() -> None:
    stems = {path.relative_to(SRC): path.stem for path in SRC.rglob("*.py")}
    wrong = [
        str(path)
        for path, stem in stems.items()
        if stem in BARE_WORDS or (stem.endswith("ing") and stem.split("_")[-1] not in NOUNS_IN_ING and stem != "string")
    ]
    assert not wrong, "not nouns: " + ", ".join(sorted(wrong))


def test_every_module_in_the_glossary_exists() -> None:
    package = SRC / "sparrow"
    named = {name for row in _rows(_section("Nouns")) for name in re.findall(r"`([\w/]+)`", row[3])}
    missing = [name for name in named if not (package / name).is_dir() and not (package / f"{name}.py").is_file()]
    assert not missing, f"docs/glossary.md names {sorted(missing)}"
