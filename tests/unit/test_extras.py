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


def test_a_package_whose_own_import_fails_keeps_its_error(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import no_such_dependency")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_dependency") as raised:
        require("half_installed", extra="tables", for_="a test")
    assert not isinstance(raised.value, MissingExtra)


def test_nothing_is_raised_for_what_is_installed():
    require("msgspec", "sparrow.wire.frame", extra="tables", for_="a test")
