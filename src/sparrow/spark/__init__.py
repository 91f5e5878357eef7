"""Topics as Spark tables and streams, and the jobs built on them.

Importing this loads neither PySpark nor Arrow: what is public comes when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparrow.spark.session import spark_session

__all__ = ["spark_session"]

_HOMES = {"spark_session": "sparrow.spark.session"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
