"""A missing optional package is named, with what needs it and the command that installs it."""

import pickle
import sys

import pytest

from sparrow.extras import require
from sparrow.model.errors import MissingExtra, SparrowError


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
