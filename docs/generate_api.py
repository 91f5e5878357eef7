"""Write docs/api.md: every public name of Sparrow, from its docstrings.

    python docs/generate_api.py            # rewrite docs/api.md
    python docs/generate_api.py --check    # exit with 1 if docs/api.md is out of date

A public name is a name in `__all__` of one of `PUBLIC_MODULES`.
"""

from __future__ import annotations

import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

PAGE = Path(__file__).with_name("api.md")
PUBLIC_MODULES = ("sparrow", "sparrow.aio", "sparrow.bus", "sparrow.spark", "sparrow.telemetry", "sparrow.testing")

_INTRODUCTION = """\
# API reference

Generated from docstrings by `make docs`; do not edit. `sparrow` holds the blocking client, `sparrow.aio` the same names
for asyncio. Guides: [client](client.md), [delivery](delivery.md), [event bus](event-bus.md), [Spark](spark.md).
"""

# How `inspect` writes an annotation that is already text, and where a type of ours is defined: neither helps a reader.
_QUOTED_ANNOTATION = re.compile(r"(: |-> )(['\"])(.*?)\2")
_MODULE_PREFIX = re.compile(r"\b(?:sparrow|collections|typing|datetime|pathlib)(?:\.[a-z_]+)*\.(?=[A-Za-z])")


_FUNCTION_DEFAULT = re.compile(r"<function (\w+) at 0x[0-9a-f]+>")


def public_names() -> Iterator[tuple[ModuleType, str, Any]]:
    """Yield (module, name, object) for every public name, module by module, in alphabetical order."""
    for module_name in PUBLIC_MODULES:
        module = importlib.import_module(module_name)
        for name in sorted(module.__all__):
            yield module, name, getattr(module, name)


def public_members(owner: type) -> Iterator[tuple[str, Any]]:
    """Yield (name, member) for the public methods and properties that a class of ours defines or inherits from ours."""
    for name in sorted(dir(owner)):
        if name.startswith("_"):
            continue
        home = next((base for base in owner.__mro__ if name in vars(base)), None)
        if home is None or not home.__module__.startswith("sparrow"):
            continue
        member = vars(home)[name]
        if isinstance(member, (staticmethod, classmethod)):
            member = member.__func__
        if inspect.isfunction(member) or isinstance(member, property):
            yield name, member


def signature_of(function: Any) -> str:
    """Return the signature of a function or class as text, without quotes and module names."""
    try:
        text = str(inspect.signature(function))
    except (TypeError, ValueError):
        return ""
    text = _FUNCTION_DEFAULT.sub(r"\1", _QUOTED_ANNOTATION.sub(r"\1\3", text))
    return _MODULE_PREFIX.sub("", text).replace("(self, ", "(").replace("(self)", "()")


def first_paragraph(documented: Any) -> str:
    """Return the first paragraph of a docstring on one line, or an empty string."""
    text = inspect.getdoc(documented) or ""
    return " ".join(text.split("\n\n")[0].split())


def _is_plain_value(thing: Any) -> bool:
    return not (inspect.isclass(thing) or inspect.isfunction(thing) or inspect.ismodule(thing))


def _entry(name: str, thing: Any) -> list[str]:
    if inspect.ismodule(thing):
        return [f"### `{name}`", "", first_paragraph(thing), ""]
    if inspect.isclass(thing):
        return _class_entry(name, thing)
    if inspect.isfunction(thing):
        prefix = "await " if inspect.iscoroutinefunction(thing) else ""
        return [f"### `{prefix}{name}{signature_of(thing)}`", "", inspect.getdoc(thing) or "", ""]
    return [f"### `{name}`", "", f"`{_MODULE_PREFIX.sub('', str(thing))}`", ""]


def _class_entry(name: str, owner: type) -> list[str]:
    is_listing = issubclass(owner, enum.Enum)
    heading = f"### `{name}`" if is_listing else f"### `class {name}{signature_of(owner)}`"
    lines = [heading, "", inspect.getdoc(owner) or "", ""]
    if is_listing:
        lines += ["Values: " + ", ".join(f"`{member.name}`" for member in owner) + ".", ""]
    members = list(public_members(owner))
    if members:
        lines += ["| member | |", "| --- | --- |"]
        for member_name, member in members:
            if isinstance(member, property):
                shown, documented = member_name, member.fget
            else:
                prefix = "await " if inspect.iscoroutinefunction(member) else ""
                shown, documented = f"{prefix}{member_name}{signature_of(member)}", member
            cell = first_paragraph(documented).replace("|", "\\|")
            lines.append(f"| `{shown.replace('|', chr(92) + '|')}` | {cell} |")
        lines.append("")
    return lines


def page() -> str:
    """Return the whole page."""
    lines = [_INTRODUCTION]
    shown: dict[int, str] = {}
    current = None
    for module, name, thing in public_names():
        if module is not current:
            current = module
            lines += [f"## {module.__name__}", "", first_paragraph(module), ""]
        first = shown.setdefault(id(thing), module.__name__)
        if first != module.__name__:
            lines += [f"### `{name}`", "", f"The same as `{first}.{name}`.", ""]
        else:
            lines += _entry(name, thing)
    return "\n".join(lines).rstrip() + "\n"


def main() -> None:
    """Write the page, or compare it."""
    if "--check" in sys.argv[1:]:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page():
            sys.exit("docs/api.md is out of date. Run: make docs")
        return
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
