"""`sparrow up --replicas`: a replica set on one machine, stopped by Ctrl-C, continued with the same data."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.databases import _program
from tests.support.message_brokers import PACKAGES

from sparrow import Consumer, Message, Producer
from sparrow.model.errors import Unavailable

ROOT = Path(__file__).parents[2]
DEADLINE_S = 120


@contextmanager
def replicas_up(data: Path, *words: str) -> Iterator[str]:
    """Run `sparrow up --replicas 3`; yield the address of the name server, and end it by Ctrl-C."""
    _program("etcd", "etcd", PACKAGES)
    command = [sys.executable, "-m", "sparrow", "up", "--replicas", "3", "--no-console", "--data", str(data)]
    command += ["--port", "0", "--name-server-port", "0", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("ready"):
                break
        assert lines[-1].startswith("ready"), lines
        (name_servers,) = (line.split()[-1] for line in lines if line.startswith("name server"))
        yield name_servers
    finally:
        process.send_signal(signal.SIGINT)
        process.stdout.read()
        assert process.wait(DEADLINE_S) == 0


@pytest.mark.thorough
def test_a_set_continues_with_its_data_after_ctrl_c(tmp_path: Path) -> None:
    with replicas_up(tmp_path / "data") as name_servers, Producer(name_servers, timeout_ms=10_000) as producer:
        sent = 0
        while sent < 10:
            try:
                producer.send(Message("orders", str(sent)))
                sent += 1
            except Unavailable:
                continue
    assert {path.name for path in (tmp_path / "data").iterdir()} >= {"etcd", "replica-1", "replica-2", "replica-3"}
    with replicas_up(tmp_path / "data") as name_servers, Consumer(name_servers, group="readers") as consumer:
        consumer.subscribe("orders")
        received = set()
        for message in consumer:
            received.add(message.body)
            if len(received) == 10:
                break


def test_without_etcd_the_command_says_how_to_install_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sparrow", "up", "--replicas", "3", "--data", str(tmp_path), "--port", "0"]
    environment = {**os.environ, "PATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=DEADLINE_S, check=False)
    assert done.returncode == 1
    assert "apt-get install etcd-server" in done.stderr


def test_the_data_of_a_single_broker_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    (tmp_path / "store" / "commitlog" / "0").touch()
    command = [sys.executable, "-m", "sparrow", "up", "--replicas", "3", "--data", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 1
    assert "cluster init --from-data" in done.stderr


@pytest.mark.thorough
def test_the_example_loses_nothing(tmp_path: Path) -> None:
    _program("etcd", "etcd", PACKAGES)
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "cluster" / "failover.py")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S * 2,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "150 messages acknowledged, 0 lost" in done.stdout
