"""Topics as Spark tables and streams, and jobs and pipelines on top of them.

Importing this package loads neither PySpark nor Arrow: public names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sparrow.spark.runtime.environment_archive import build_environment_archive, use_environment_archive
    from sparrow.spark.runtime.session import spark_session

__all__ = ["build_environment_archive", "spark_session", "use_environment_archive"]

_MODULES = {
    "build_environment_archive": "sparrow.spark.runtime.environment_archive",
    "spark_session": "sparrow.spark.runtime.session",
    "use_environment_archive": "sparrow.spark.runtime.environment_archive",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
