"""Open a Spark session on any machine with `sparrowmq[spark]`: find Java, set Python, keep the terminal quiet.

If this process has a session already, it is returned, with only the given options applied to it.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from sparrow.model.errors import SettingsError
from sparrow.spark.runtime.class_archive import archive_path, build_in_background, options_to_use, spark_home
from sparrow.spark.runtime.java import Java, cache_directory, find_java, write_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

JAVA_OPTIONS_KEY = "spark.driver.extraJavaOptions"
PYTHON_KEY = "spark.pyspark.python"
# A separate file: a directory on the class path, where Spark's settings usually are, would disable the class archive.
LOG4J_FILE = Path(__file__).with_name("log4j2.properties")

DEFAULT_CONF: Mapping[str, str] = MappingProxyType(
    {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
)
LOCAL_CONF: Mapping[str, str] = MappingProxyType(
    {
        # A laptop's host name may resolve to an address that changes; the loopback address does not.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.catalogImplementation": "in-memory",
    }
)
# For tests and short jobs: starts half a second faster, but never fully optimises code.
_PROBE_TIMEOUT_S = 10.0
QUICK_START_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class PySparkNotInstalled(SettingsError):
    """PySpark is missing in this Python environment."""

    def __init__(self) -> None:
        super().__init__("pyspark", None, "this Python environment", "sparrowmq[spark]")

    def __str__(self) -> str:
        return f"PySpark is not installed in {sys.prefix}: run `pip install 'sparrowmq[spark]'`"


def spark_session(
    app_name: str,
    *,
    master: str | None = None,
    options: Mapping[str, str] = MappingProxyType({}),
    quick_start: bool = False,
    use_class_archive: bool = True,
    build_class_archive: bool = False,
) -> SparkSession:
    """Return the running session, or a new one, as the active session of this thread.

    `master` defaults to `local[*]`, under `spark-submit` to its own argument. `options` are Spark's and override our
    defaults. `use_class_archive` uses the class archive if it exists; `build_class_archive` builds a missing one in the
    background.
    """
    if find_spec("pyspark") is None:
        raise PySparkNotInstalled
    from pyspark import SparkConf, SparkContext

    if SparkContext._active_spark_context is not None:
        return _get_or_create(app_name, options)
    if "PYSPARK_GATEWAY_PORT" in os.environ:  # spark-submit has started Java and this process
        SparkContext._ensure_initialized()
        submitted_conf = SparkConf()
        ours = {key: value for key, value in DEFAULT_CONF.items() if not submitted_conf.contains(key)}
        return _get_or_create(app_name, {**ours, **options, **({"spark.master": master} if master else {})})

    java, spark, cache = find_java(), spark_home(os.environ), cache_directory(os.environ)
    assert spark is not None
    archive = archive_path(java, spark, cache)
    java_options = [f"-Dlog4j2.configurationFile={LOG4J_FILE.as_uri()}"]
    java_options += options_to_use(java, archive) if use_class_archive else []
    java_options += QUICK_START_OPTIONS if quick_start else ()
    master = master or options.get("spark.master") or "local[*]"
    fixed = {
        "spark.master": master,
        JAVA_OPTIONS_KEY: f"{join_java_options(java_options)} {options.get(JAVA_OPTIONS_KEY, '')}".strip(),
    }
    _warn_without_sparrow(options.get(PYTHON_KEY), is_local=master.startswith("local"))
    with spark_environment(java, cache, python=options.get(PYTHON_KEY)):
        session = _get_or_create(app_name, {**default_conf(master), **options, **fixed})
    if build_class_archive and not archive.is_file():
        build_in_background()
    return session


def _warn_without_sparrow(workers: str | None, *, is_local: bool) -> None:
    """Warn about another Python that Spark runs on this machine and that does not have Sparrow."""
    chosen = {f"the option {PYTHON_KEY}": workers} if workers else {"PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON")}
    chosen = {"PYSPARK_DRIVER_PYTHON": os.environ.get("PYSPARK_DRIVER_PYTHON")} | (chosen if is_local else {})
    for origin, python in chosen.items():
        if python and shutil.which(python) != sys.executable and not _has_sparrow(python):
            log.warning(
                "Spark will not find the format sparrow: %(python)s (from %(origin)s) cannot import it. Run "
                "`pip install 'sparrowmq[spark]'` in that Python, or remove %(origin)s",
                {"python": python, "origin": origin},
            )


def _has_sparrow(python: str) -> bool:
    program = "from importlib.util import find_spec; import sys; sys.exit(find_spec('pyspark_sparrow') is None)"
    try:
        subprocess.run([python, "-c", program], check=True, capture_output=True, timeout=_PROBE_TIMEOUT_S)
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _get_or_create(app_name: str, options: Mapping[str, str]) -> SparkSession:
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession

    for noisy in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        # PySpark prints kilobytes of JSON for each error in a query, in addition to raising it.
        PySparkLogger.getLogger(noisy).disabled = True
    # PySpark imports pandas even if it is not used, and warns about pandas 3.
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
    session = SparkSession.builder.appName(app_name).config(map=dict(options)).getOrCreate()
    activate(session)
    return session


def activate(spark: SparkSession) -> None:
    """Make a session the active one of this thread.

    Spark looks for the formats of Python packages in the active session when something is written. Java has a thread
    for each thread of Python, and one that is new has no active session; so it is after a call was interrupted.
    """
    from pyspark import SparkContext

    jvm = SparkContext._jvm
    assert jvm is not None, "a session has a Java gateway"
    jvm.org.apache.spark.sql.SparkSession.setActiveSession(spark._jsparkSession)


def join_java_options(java_options: Iterable[str]) -> str:
    """Join Java options to one line, which Spark splits at blanks outside of quotes."""
    return " ".join(f'"{option}"' if " " in option else option for option in java_options)


def default_conf(master: str) -> dict[str, str]:
    """Return our defaults where Spark's do not suit; they cost nothing on a large cluster."""
    if not master.startswith("local"):
        return dict(DEFAULT_CONF)
    # Spark's default of 200 is for clusters. On one machine each partition costs milliseconds per batch.
    cores = str(max(2, os.cpu_count() or 2))
    return {**DEFAULT_CONF, **LOCAL_CONF, "spark.sql.shuffle.partitions": cores}


@contextmanager
def spark_environment(java: Java, cache: Path, *, python: str | None = None) -> Iterator[None]:
    """Set the environment that Java and Spark's Python workers inherit, and restore it afterwards."""
    ours = {"JAVA_HOME": str(write_java_home(java, cache))}
    # By default workers run the first `python3` on the PATH, which may lack the packages of this environment.
    ours["PYSPARK_PYTHON"] = python or os.environ.get("PYSPARK_PYTHON", sys.executable)
    ours["PYSPARK_DRIVER_PYTHON"] = os.environ.get("PYSPARK_DRIVER_PYTHON", sys.executable)
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
