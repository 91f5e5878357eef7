"""Shared by all tests: hypothesis profiles, the scale of a run, the markers that a folder implies, databases, Spark."""

import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import HealthCheck, settings

# The same examples in every run: a result must not depend on luck. `make fault` searches further, with random
# examples. No deadline: a shared machine stalls now and then, and a stall is not a counterexample.
settings.register_profile("default", max_examples=100, deadline=None, derandomize=True, database=None)
settings.register_profile(
    "thorough",
    max_examples=1_000,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

TESTS = Path(__file__).parent
MARKED_FOLDERS = ("fault", "interop")
DATABASE_NAMES = {"database", "tables_name"}
"""The parameters of a test that select its database."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests under tests/fault and tests/interop by their folder; leave out what a smoke run does not need."""
    for item in items:
        folder = item.path.relative_to(TESTS).parts[0]
        if folder in MARKED_FOLDERS:
            item.add_marker(folder)
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("xdist_group") is None:
            # One worker runs all tests that use Spark: two would start two sessions, and the memory suffices for one.
            item.add_marker(pytest.mark.xdist_group("spark"))
    if os.environ.get("SPARROW_SCALE", "smoke") == "smoke":
        left_out = {item for item in items if item.get_closest_marker("thorough")} | _left_to_other_databases(items)
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def _left_to_other_databases(items: list[pytest.Item]) -> set[pytest.Item]:
    """Return the items of tests marked `one_database`, except one item per test.

    The name of the test selects the database: every run selects the same one, and the tests of a file cover all.
    """
    variants: dict[tuple[object, ...], list[pytest.Item]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and hasattr(item, "callspec") and item.get_closest_marker("one_database"):
            others = {name: repr(value) for name, value in item.callspec.params.items() if name not in DATABASE_NAMES}
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


DATABASES = ("sqlite", "mariadb", "postgresql")


@pytest.fixture(scope="session")
def database_servers():
    """Start a real database server when the first test needs it."""
    # Imported late: tests/integration/conftest.py registers this module for assert rewriting first.
    from tests.support.databases import ServerNotInstalled, mariadb_server, postgres_server

    starters = {"mariadb": mariadb_server, "postgresql": postgres_server}
    with ExitStack() as stack:
        started = {}

        def server(name: str):
            if name not in started:
                try:
                    started[name] = stack.enter_context(starters[name]())
                except ServerNotInstalled as missing:
                    if os.environ.get("CI"):  # in CI, a skipped test would hide a gap
                        raise
                    pytest.skip(str(missing))
            return started[name]

        yield server


@pytest.fixture(params=DATABASES)
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


@pytest.fixture
def local_cluster_spark(tmp_path: Path):
    """Return `run(script, *arguments)`, which runs the text of a script in a new process, on two executors."""
    from tests.support.spark import run_script

    return partial(run_script, folder=tmp_path)
