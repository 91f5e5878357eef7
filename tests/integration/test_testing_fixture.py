"""The platform fixtures of `sparrow.testing`: fresh, real, fast to start, and removed after the test."""

import subprocess
import sys
from pathlib import Path

import pytest

from sparrow.client import Admin, Consumer, Message, Producer, aio
from sparrow.model.errors import SparrowError
from sparrow.testing import RunningPlatform, run_platform


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_gets_its_own_platform(platform: RunningPlatform, turn: int) -> None:
    with Producer(platform.name_servers) as producer:
        assert producer.send(Message("orders", b"%d" % turn)).queue_offset == 0
    with Consumer(platform.name_servers, group="billing") as consumer:
        consumer.subscribe("orders")
        assert next(consumer).body == b"%d" % turn


async def test_asyncio_clients_use_the_same_platform(platform: RunningPlatform) -> None:
    async with (
        aio.Producer(platform.name_servers) as producer,
        aio.Consumer(platform.name_servers, group="b") as consumer,
    ):
        await producer.send(Message("orders", b"a book"))
        await consumer.subscribe("orders")
        assert (await anext(consumer)).body == b"a book"


def test_platform_of_the_run_is_another_one_than_that_of_the_test(
    sparrow_platform: RunningPlatform, platform: RunningPlatform
) -> None:
    assert sparrow_platform.name_servers != platform.name_servers
    with Admin(sparrow_platform.name_servers) as admin:
        ((_, cluster),) = admin.clusters().items()
        assert list(cluster.masters.values()) == [sparrow_platform.address]


def test_stopped_platform_refuses_sends_and_may_be_stopped_twice(platform: RunningPlatform) -> None:
    with Producer(platform.name_servers, timeout_ms=500) as producer:
        producer.send(Message("orders", b"x"))
        platform.stop()
        platform.stop()
        with pytest.raises(SparrowError):
            producer.send(Message("orders", b"x"))


def test_two_platforms_run_at_once_and_remove_their_folders() -> None:
    with run_platform() as one, run_platform() as other:
        assert one.address != other.address
        folders = [one.folder, other.folder]
        assert all(folder.is_dir() for folder in folders)
    assert not any(folder.exists() for folder in folders)


def test_platform_with_a_given_folder_keeps_its_messages_across_runs(tmp_path: Path) -> None:
    with run_platform(tmp_path) as platform, Producer(platform.name_servers) as producer:
        producer.send(Message("orders", b"kept", keys="order-7"))
    with run_platform(tmp_path) as platform, Admin(platform.name_servers) as admin:
        assert [message.body for message in admin.find_by_key("orders", "order-7")] == [b"kept"]


def test_settings_may_be_overridden() -> None:
    with run_platform(log={"message_bytes_max": 1000}, broker={"name": "other"}) as platform:
        with Producer(platform.name_servers) as producer:
            assert producer.send(Message("orders", b"small")).broker_name == "other"
            with pytest.raises(SparrowError):
                producer.send(Message("orders", bytes(1001)))


def test_project_with_sparrow_installed_finds_the_fixtures(tmp_path: Path) -> None:
    (tmp_path / "test_theirs.py").write_text(
        "def test_theirs(platform, sparrow_platform):\n    assert platform.name_servers\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_pytest_run_without_a_platform_imports_no_heavy_modules() -> None:
    script = (
        "import sys, sparrow.testing.plugin\n"
        "heavy = {'numpy', 'pyarrow', 'pydantic', 'sparrow.broker', 'sparrow.client'} & sys.modules.keys()\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
