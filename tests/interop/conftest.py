"""Fixtures of the interop tests: the official jars, a running platform, and official clients of both generations.

`--against=apache` runs Sparrow's tests against Apache's broker instead, to verify the tests themselves.
"""

import os
import re
from collections.abc import Iterator

import pytest
from tests.interop import official, platforms
from tests.interop.fresh_topic import QUEUES, FreshTopic
from tests.interop.java import JavaClient, Producer, java_client
from tests.interop.mqadmin import Mqadmin
from tests.interop.official import Kit
from tests.interop.platforms import Platform

from sparrow.client.aio import Admin

CLIENT_VERSIONS = ("4.9.7", "5.5.0")
APACHE_VERSIONS = {"apache": "4.9.7", "apache-5": "5.5.0"}
PRODUCER_GROUP = "interop_producers"
# RocketMQ's template topic: brokers with auto-creation of topics serve it, and new topics copy its configuration.
TEMPLATE_TOPIC = "TBW102"
PLATFORMS = ("sparrow", *APACHE_VERSIONS)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--against",
        action="append",
        choices=PLATFORMS,
        help="what the official clients talk to (default: sparrow); may be given more than once",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "platform" in metafunc.fixturenames:
        # pytest knows the option only when this folder is named on the command line; the variable always works.
        against = metafunc.config.getoption("against", None) or [os.environ.get("SPARROW_INTEROP_AGAINST", "sparrow")]
        metafunc.parametrize("platform", against, indirect=True, scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of one official version in one worker: the others would start its JVMs and brokers too."""
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        version = parameters.get("kit") or parameters.get("apache_kit")
        if version is not None and item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(str(version)))


@pytest.fixture(scope="session", params=CLIENT_VERSIONS)
def kit(request: pytest.FixtureRequest) -> Kit:
    """The official jars, in each supported version."""
    return official.kit(request.param)


@pytest.fixture(scope="session", params=CLIENT_VERSIONS)
def apache_kit(request: pytest.FixtureRequest) -> Kit:
    """The official jars as servers, for tests of Sparrow's client."""
    return official.kit(request.param)


@pytest.fixture(scope="session")
def apache_broker(apache_kit: Kit, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """Apache's own name server and broker."""
    with platforms.apache(apache_kit, tmp_path_factory.mktemp("apache")) as running:
        yield running


@pytest.fixture(scope="session")
def apache_java(
    apache_kit: Kit, apache_broker: Platform, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[JavaClient]:
    """The official client of the broker's version, for use beside Sparrow's client."""
    with java_client(apache_kit, apache_broker.name_server, tmp_path_factory.mktemp("java")) as client:
        yield client


@pytest.fixture
async def fresh_topic(request: pytest.FixtureRequest, apache_broker: Platform) -> FreshTopic:
    """A new topic on Apache's broker, named after the test, and a group without committed offsets."""
    # A retry topic's name, which is longer than the group's, may have 127 characters.
    topic = request.node.originalname.removeprefix("test_")[:80]
    async with Admin(apache_broker.name_server) as admin:
        await admin.create_topic(topic, QUEUES)
    return FreshTopic(apache_broker, topic, f"{topic}_group")


@pytest.fixture(scope="session")
def platform(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """The platform under test for the official clients."""
    kind: str = request.param
    folder = tmp_path_factory.mktemp(kind)
    running = (
        platforms.sparrow(folder)
        if kind == "sparrow"
        else platforms.apache(official.kit(APACHE_VERSIONS[kind]), folder)
    )
    with running as it:
        yield it


@pytest.fixture(scope="session", params=["log", "sqlite"])
def store(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    return kind


@pytest.fixture(scope="session")
def on(store: str, platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """The platform under test, and Sparrow on a database."""
    if store == "log":
        yield platform
        return
    if platform.kind != "sparrow":
        pytest.skip("only Sparrow has a SQL store")
    folder = tmp_path_factory.mktemp("sqlite")
    with platforms.sparrow(folder, BROKER__STORE=f"sqlite:///{folder}/store.db") as running:
        yield running


@pytest.fixture(scope="session")
def java(kit: Kit, platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClient]:
    """One JVM with the official client for all tests of a version."""
    with java_client(kit, platform.name_server, tmp_path_factory.mktemp("java")) as client:
        yield client


@pytest.fixture(scope="session")
def client_is_newer(kit: Kit, platform: Platform) -> bool:
    """Whether the client may send requests that the broker, Apache's 4.9, does not know."""
    return platform.is_apache_4 and not kit.version.startswith("4.")


@pytest.fixture(scope="session")
def producer(java: JavaClient) -> Iterator[Producer]:
    with java.producer(PRODUCER_GROUP) as running:
        yield running


@pytest.fixture(scope="session")
def mqadmin(java: JavaClient) -> Mqadmin:
    return Mqadmin(java)


@pytest.fixture
def topic(request: pytest.FixtureRequest, producer: Producer, kit: Kit) -> str:
    """A new topic with four queues, named after the test."""
    name = re.sub(r"\W+", "_", f"{request.node.originalname}_{producer.client.name(kit.version)}")
    producer.create_topic(name, like=TEMPLATE_TOPIC)
    return name
