"""Shared by all tests: hypothesis profiles, the scale of a run, the markers that a folder implies, databases, Spark."""

import os
import signal
import sys
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, settings

# The tests start hundreds of Python processes: without bytecode on disk, each would compile every module again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# A command that a shell runs in the background ignores Ctrl-C, and so would the processes that tests interrupt.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# As pytest does in test modules: before any of them is imported.
pytest.register_assert_rewrite("tests.integration.conformance", "tests.support")

from tests.support.databases import ServerNotInstalled  # noqa: E402
from tests.support.tested_databases import database_server, databases_under_test  # noqa: E402

# The same examples in every run: a result must not depend on luck. `make fault` searches further, with random
# examples. No deadline: a shared machine stalls now and then, and a stall is not a counterexample.
settings.register_profile("default", max_examples=60, deadline=None, derandomize=True, database=None)
settings.register_profile(
    "thorough",
    max_examples=1_000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

TESTS = Path(__file__).parent
MARKED_FOLDERS = ("fault", "interop")
DATABASE_NAMES = {"database", "tables_name", "replicated", "server"}
"""The parameters of a test that select its database."""
SPARK_TIMEOUT_S = 600
QUICK_COMMITS: dict[str, dict[str, object]] = {
    "mariadb": {"innodb_flush_log_at_trx_commit": 2},
    "mysql": {"innodb_flush_log_at_trx_commit": 2, "sync_binlog": 0},
    "postgresql": {"fsync": "off"},
}
"""Settings that survive a kill, but no power failure, which no test can cause."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests under tests/fault and tests/interop by their folder; leave out what a smoke run does not need."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in MARKED_FOLDERS:
            item.add_marker(folder)
        if "spark" in getattr(item, "fixturenames", ()):
            if item.get_closest_marker("xdist_group") is None:
                # `make test` runs all of them in one worker: each session starts for ten seconds and takes a gigabyte.
                item.add_marker(pytest.mark.xdist_group("spark"))
            if item.get_closest_marker("timeout") is None:
                # Whichever test is the first starts Spark and its Python processes, which takes long on a busy machine.
                item.add_marker(pytest.mark.timeout(SPARK_TIMEOUT_S))
        elif _shares_a_module_fixture(item) and item.get_closest_marker("xdist_group") is None:
            # In one worker: every other worker would set the fixture up again.
            item.add_marker(pytest.mark.xdist_group(item.path.stem))
    if os.environ.get("SPARROW_SCALE", "smoke") == "smoke":
        on_other_databases = _on_other_databases(items)
        left_out = {item for item in on_other_databases if item.get_closest_marker("one_database")}
        for item in on_other_databases - left_out:
            item.add_marker("thorough")
        if os.environ.get("SPARROW_DATABASE") == "mysql":
            left_out |= {item for item in items if not _may_differ_on_mysql(item)}
        if "thorough" not in config.getoption("markexpr"):  # `make thorough` and `make spark` ask for them
            left_out |= {item for item in items if item.get_closest_marker("thorough")}
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _shares_a_module_fixture(item: pytest.Item) -> bool:
    """Return whether the test uses a fixture that the tests of its file share."""
    found = getattr(item, "_fixtureinfo", None)
    return found is not None and any(
        fixture.scope == "module" for fixtures in found.name2fixturedefs.values() for fixture in fixtures
    )


def _may_differ_on_mysql(item: pytest.Item) -> bool:
    """Return whether `make mysql` needs the test: it uses MySQL, and makes a claim that the engine may change."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    fixtures = getattr(item, "fixturenames", ())
    is_on_mysql = "mysql" in str([*parameters.values()]) if parameters else "database_servers" in fixtures
    markers = {marker.name for marker in item.iter_markers()}
    return is_on_mysql and ("one_database" not in markers or bool(markers & {"locks", "fault"}))


def _on_other_databases(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the items of tests that run on each database, except one item per test, which `make test` runs.

    The name of the test selects the database: every run selects the same one, and the tests of a file cover all.
    `make thorough` runs the others, unless the test is marked `one_database`.
    """
    variants: dict[tuple[object, ...], list[pytest.Item]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
            parameters = item.callspec.params
            others = {name: repr(value) for name, value in parameters.items() if name not in DATABASE_NAMES}
            if len(others) < len(parameters):
                key = (item.path, item.cls, item.originalname, *sorted(others.items()))
                variants.setdefault(key, []).append(item)
    chosen = {found[zlib.crc32(str(key[2]).encode()) % len(found)] for key, found in variants.items()}
    return {item for found in variants.values() for item in found} - chosen


@pytest.fixture
def scale() -> Literal["smoke", "full"]:
    """Return `smoke` (seconds, the default) or `full` (the real sizes), from SPARROW_SCALE."""
    value = os.environ.get("SPARROW_SCALE", "smoke")
    if value == "smoke":
        return "smoke"
    if value == "full":
        return "full"
    raise pytest.UsageError(f"SPARROW_SCALE is {value!r}; say smoke or full")


@pytest.fixture(scope="session")
def database_servers():
    """Start a real database server when the first test needs it."""
    with ExitStack() as stack:
        started = {}

        def server(name: str):
            if name not in started:
                try:
                    started[name] = stack.enter_context(database_server(name, **QUICK_COMMITS[name]))
                except ServerNotInstalled as missing:
                    if os.environ.get("CI"):  # in CI, a skipped test would hide a gap
                        raise
                    pytest.skip(str(missing))
            return started[name]

        yield server


@pytest.fixture(params=databases_under_test("sqlite", "mariadb", "postgresql"))
def database(request) -> str:
    """Return the name of a database; the test runs once per database."""
    return request.param


@pytest.fixture
def database_url(database: str, database_servers, tmp_path: Path) -> Iterator[str]:
    """Yield the URL of an empty database."""
    if database == "sqlite":
        yield f"sqlite:///{tmp_path}/sparrow.db"
        return
    server = database_servers(database)
    url = server.new_database()
    yield url
    server.recycle_database(url)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory):
    """Yield the Spark session of the run, started when the first test needs it."""
    from tests.support.spark import start_session

    session = start_session(tmp_path_factory.mktemp("spark-warehouse"))
    yield session
    session.stop()


@pytest.fixture(autouse=True)
def _active_session(request: pytest.FixtureRequest) -> None:
    """Make the session of the run active, as it was at its start: a test that interrupts a call leaves none."""
    if "spark" in request.fixturenames:
        from sparrow.spark.runtime.session import activate

        activate(request.getfixturevalue("spark"))


@pytest.fixture
def local_cluster_spark(tmp_path: Path):
    """Return `run(script, *arguments)`, which runs the text of a script in a new process, on two executors."""
    from tests.support.spark import run_script

    return partial(run_script, folder=tmp_path)


@pytest.fixture
def no_page_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the log store read old messages in threads, as where the system cannot say what the page cache has."""
    monkeypatch.setattr("sparrow.store.log.page_cache._NOWAIT", None)
