"""The session helper and its errors, without a session."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from sparrow.spark.runtime.session import _warn_without_sparrow
from sparrow.spark.runtime.spark_errors import summarize_error


def python_without_sparrow(folder: Path) -> str:
    """Return a Python of its own, without site packages."""
    path = folder / "bare-python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize("variable", ["PYSPARK_DRIVER_PYTHON", "PYSPARK_PYTHON"])
def test_another_python_without_sparrow_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    monkeypatch.delenv("PYSPARK_DRIVER_PYTHON", raising=False)
    with caplog.at_level(logging.WARNING):
        _warn_without_sparrow(None, is_local=True)
        monkeypatch.setenv(variable, sys.executable)
        _warn_without_sparrow(None, is_local=True)
        assert caplog.messages == []
        python = python_without_sparrow(tmp_path)
        monkeypatch.setenv(variable, python)
        _warn_without_sparrow(None, is_local=True)
    (sentence,) = caplog.messages
    assert f"{python} (from {variable}) cannot import it" in sentence
    assert "pip install 'sparrowmq[spark]'" in sentence


def test_the_error_for_an_unknown_format_says_which_python_lacks_sparrow() -> None:
    trace = "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: sparrow. Make sure the provider name is correct"
    assert "PYSPARK_DRIVER_PYTHON" in summarize_error(trace)
    assert "PYSPARK" not in summarize_error(trace.replace("sparrow", "delta"))
