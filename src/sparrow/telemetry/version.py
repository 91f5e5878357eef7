"""The version of the installed package."""

from __future__ import annotations

from functools import cache
from importlib.metadata import PackageNotFoundError, version


@cache
def sparrow_version() -> str:
    """Return the version of Sparrow; `unknown` if it runs without being installed."""
    try:
        return version("sparrowmq")
    except PackageNotFoundError:
        return "unknown"
