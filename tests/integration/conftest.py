"""Suites that several engines share are tests too: their asserts are to explain themselves. Spark is started once."""

from functools import partial
from pathlib import Path

import pytest

pytest.register_assert_rewrite("tests.integration.conformance", "tests.support")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker has all tests of the Spark session: two would start two, and the machine has room for one."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()) and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory):
    """The Spark session of the run, started when the first test asks for it."""
    from tests.support.spark import start_session

    session = start_session(tmp_path_factory.mktemp("spark-warehouse"))
    yield session
    session.stop()


@pytest.fixture
def local_cluster_spark(tmp_path: Path):
    """Runs a script (its text) on a cluster of two executors, in a process of its own: `run(script, *arguments)`."""
    from tests.support.spark import run_script

    return partial(run_script, folder=tmp_path)
