"""`sparrow console`, and the console beside `sparrow up`, run as a user runs them."""

import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from tests.support.certificates import make_certificates

from sparrow import Admin
from sparrow.testing.platform import RunningPlatform

SPARROW = [sys.executable, "-m", "sparrow"]
FREE_PORTS = ("--port", "0", "--name-server-port", "0")


@contextmanager
def running(*words: str, until: str, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """Start a server; yield it, and its output up to the line that begins with a word."""
    with subprocess.Popen(
        [*SPARROW, *words], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None
            said: list[str] = []
            for line in child.stdout:
                said.append(line.strip())
                if line.startswith(until):
                    break
            assert said, child.stderr.read() if child.stderr else ""
            assert said[-1].startswith(until), said
            yield child, said
        finally:
            child.kill()


def topics_at(url: str) -> list[str]:
    answer = httpx.get(f"{url}/api/v1/topics", timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    return [topic["name"] for topic in answer.json()["items"]]


def origins_at(url: str) -> dict[str, str]:
    answer = httpx.get(f"{url}/api/v1/settings", timeout=60, trust_env=False)
    return {setting["name"]: setting["origin"] for setting in answer.json()}


def test_the_console_prints_its_address_and_ctrl_c_stops_it(platform: RunningPlatform, tmp_path: Path) -> None:
    with Admin(platform.name_servers) as admin:
        admin.create_topic("orders")
    (tmp_path / "sparrow.toml").write_text("[console]\nsample_count = 100\n")
    words = ("console", "--name-servers", platform.name_servers, "--port", "0")
    with running(*words, until="console http://127.0.0.1:", cwd=tmp_path) as (child, said):
        assert topics_at(said[-1].split()[1]) == ["orders"]
        origins = origins_at(said[-1].split()[1])
        assert (origins["console.port"], origins["console.host"]) == ("--port", "default")
        assert origins["console.sample_count"] == "sparrow.toml"
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 0


def test_up_serves_the_console_in_a_process_that_does_not_outlive_it(tmp_path: Path) -> None:
    words = ("up", *FREE_PORTS, "--console-port", "0")
    with running(*words, until="console ", cwd=tmp_path) as (child, said):
        assert topics_at(said[-1].split()[1]) == []
        origins = origins_at(said[-1].split()[1])
        assert (origins["console.port"], origins["console.host"]) == ("--port", "default")
        (console,) = psutil.Process(child.pid).children()
        child.kill()
        psutil.wait_procs([console], timeout=60)
        assert not console.is_running()


def test_console_and_metrics_answer_over_tls(tmp_path: Path) -> None:
    files = make_certificates(tmp_path)
    certificate = f'tls_certificate = "{files.certificate}"\ntls_key = "{files.key}"\n'
    log_in = '[console.tokens.olga]\nrole = "viewer"\nsecret_key = "a long random text"\n'
    settings = f"[console]\nauth = true\n{certificate}{log_in}[telemetry]\nmetrics_port = 0\n{certificate}"
    (tmp_path / "sparrow.toml").write_text(settings)
    words = ("up", *FREE_PORTS, "--console-port", "0")
    with running(*words, until="console ", cwd=tmp_path) as (_child, said):
        addresses = dict(line.split(" ", 1) for line in said if " " in line)
        trusted = ssl.create_default_context(cafile=files.authority)
        assert "rocketmq_" in httpx.get(addresses["metrics"], verify=trusted, timeout=60, trust_env=False).text
        with httpx.Client(base_url=addresses["console"], verify=trusted, timeout=60, trust_env=False) as browser:
            assert browser.get("/api/v1/topics").status_code == 401
            answer = browser.post("/api/v1/session", json={"secret_key": "a long random text"})
            assert answer.status_code == 200, answer.text
            assert "Secure" in answer.headers["set-cookie"]
            assert browser.get("/api/v1/topics").status_code == 200
            assert browser.get("/topics").status_code == 200  # a page asks the API for the visitor
        plain = addresses["console"].replace("https:", "http:")
        with pytest.raises(httpx.TransportError):
            httpx.get(plain, timeout=60, trust_env=False)


@pytest.mark.thorough
def test_a_taken_port_of_the_console_does_not_stop_the_broker(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        with running("up", *FREE_PORTS, "--console-port", port, until="ready", cwd=tmp_path) as (child, said):
            assert child.stderr is not None
            warning = child.stderr.readline()
            assert f"cannot listen on 127.0.0.1:{port}" in warning
            assert "--console-port" in warning
            with Admin(said[0].removeprefix("name server ")) as admin:
                assert admin.clusters()


def test_other_addresses_than_loopback_need_a_log_in(tmp_path: Path) -> None:
    words = [*SPARROW, "console", "--host", "0.0.0.0", "--port", "0"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "console.auth" in done.stderr
    assert "Traceback" not in done.stderr
