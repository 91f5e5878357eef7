"""The broker reads the abilities of a store and never tests which engine it is."""

import ast
from pathlib import Path

import sparrow.broker

ENGINES = {"LogStore", "SqlStore"}


def test_no_module_of_the_broker_tests_for_an_engine() -> None:
    found = []
    for path in sorted(Path(sparrow.broker.__path__[0]).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                names = {each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)}
                if names & ENGINES:
                    found.append(f"{path.name}:{node.lineno}")
    assert not found, found
