"""Topics as Spark tables and streams, and jobs and pipelines on top of them.

Importing this package loads neither PySpark nor Arrow: public names are imported on first use.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING

from sparrow.extras import require

if TYPE_CHECKING:
    from sparrow.spark.runtime.class_archive import ClassArchiveFailed
    from sparrow.spark.runtime.environment_archive import (
        PackagingFailed,
        build_environment_archive,
        use_environment_archive,
    )
    from sparrow.spark.runtime.java import JavaNotFound
    from sparrow.spark.runtime.progress import JobProgress
    from sparrow.spark.runtime.query_metrics import QueryMetrics
    from sparrow.spark.runtime.session import PySparkNotInstalled, spark_session
    from sparrow.spark.runtime.spark_errors import JobFailed
    from sparrow.spark.source.offset_resolution import MessagesGone

__all__ = [
    "ClassArchiveFailed",
    "JavaNotFound",
    "JobFailed",
    "JobProgress",
    "MessagesGone",
    "PackagingFailed",
    "PySparkNotInstalled",
    "QueryMetrics",
    "build_environment_archive",
    "spark_session",
    "use_environment_archive",
]

_MODULES = {
    "ClassArchiveFailed": "sparrow.spark.runtime.class_archive",
    "JavaNotFound": "sparrow.spark.runtime.java",
    "JobFailed": "sparrow.spark.runtime.spark_errors",
    "JobProgress": "sparrow.spark.runtime.progress",
    "MessagesGone": "sparrow.spark.source.offset_resolution",
    "PackagingFailed": "sparrow.spark.runtime.environment_archive",
    "PySparkNotInstalled": "sparrow.spark.runtime.session",
    "QueryMetrics": "sparrow.spark.runtime.query_metrics",
    "build_environment_archive": "sparrow.spark.runtime.environment_archive",
    "spark_session": "sparrow.spark.runtime.session",
    "use_environment_archive": "sparrow.spark.runtime.environment_archive",
}
_DEPRECATED = {"build_archive": "build_environment_archive", "use_archive": "use_environment_archive"}
"""Names of version 0.1, which go in 0.3."""


def __getattr__(name: str) -> object:
    if name in _DEPRECATED:
        warnings.warn(f"sparrow.spark.{name} is now {_DEPRECATED[name]}", DeprecationWarning, stacklevel=2)
        name = _DEPRECATED[name]
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    require("pyarrow", "numpy", extra="spark", for_=f"sparrow.spark.{name}")
    return getattr(import_module(_MODULES[name]), name)
