"""A missing optional package is named, with what needs it and the command that installs it."""

import ast
import pickle
import sys
import tomllib
from pathlib import Path

import pytest

from sparrow.extras import require
from sparrow.model.errors import MissingExtra, SparrowError

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)  # Python's own mark of a module that cannot be imported
    with pytest.raises(MissingExtra) as raised:
        require("msgspec", "pyarrow", extra="tables", for_="Producer.send_table")
    assert str(raised.value) == 'Producer.send_table needs pyarrow: pip install "sparrowmq[tables]"'
    assert isinstance(raised.value, ImportError)
    assert isinstance(raised.value, SparrowError)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_what_is_installed_is_not_imported(tmp_path, monkeypatch):
    (tmp_path / "not_yet_imported.py").write_text("raise AssertionError")
    monkeypatch.syspath_prepend(tmp_path)
    require("msgspec", "not_yet_imported", extra="tables", for_="a test")
    assert "not_yet_imported" not in sys.modules


def test_a_client_depends_on_msgspec_alone():
    assert [requirement.partition(">=")[0] for requirement in PROJECT["dependencies"]] == ["msgspec"]


def packages_of(extra: str) -> set[str]:
    """Return what an extra installs, as modules, including the extras that it contains."""
    found = set()
    for requirement in PROJECT["optional-dependencies"][extra]:
        name, _, inner = requirement.partition(">=")[0].partition("[")
        if name == "sparrowmq":
            found |= {package for each in inner.rstrip("]").split(",") for package in packages_of(each)}
        else:
            found.add(name.replace("-", "_"))
    return found


def test_every_extra_that_is_named_installs_what_is_missing():
    checked = 0
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or getattr(node.func, "id", "") != "require":
                continue
            extra = {keyword.arg: keyword.value for keyword in node.keywords}["extra"]
            if isinstance(extra, ast.Constant):
                modules = {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
                assert modules <= packages_of(extra.value), f"{path}:{node.lineno}"
                checked += 1
    assert checked > 5
