"""docs/event-bus.md lists every operation of the bus, with arguments that exist."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from sparrow.bus import Operations
from sparrow.bus.operations.operations import AsyncOperations

PAGE = (Path(__file__).parents[3] / "docs" / "event-bus.md").read_text(encoding="utf-8")


def documented_operations() -> dict[str, str]:
    table = PAGE.partition("## Operations")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)\((.*?)\)` \|", table, re.MULTILINE))


def public_methods(owner: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(owner, inspect.isfunction) if not name.startswith("_")]


def test_the_page_lists_every_operation_and_no_other() -> None:
    assert sorted(documented_operations()) == public_methods(Operations) == public_methods(AsyncOperations)


def test_the_arguments_on_the_page_exist_with_these_defaults() -> None:
    for name, printed in documented_operations().items():
        known = inspect.signature(getattr(Operations, name)).parameters
        for argument in filter(None, printed.removeprefix("*, ").replace("*, ", "").split(", ")):
            argument, _, default = argument.lstrip("*").partition("=")
            assert argument in known, (name, argument)
            assert not default or repr(known[argument].default) == default.replace('"', "'"), (name, argument)
