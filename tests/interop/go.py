"""The official Go client as a process that executes commands; go/main.go lists them."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from tests.interop import official
from tests.interop.java import ClientProcess, Consumer, ReceivedMessage, client_process

SOURCES = Path(__file__).parent / "go"
BUILD_TIMEOUT_S = 600
USUAL_FOLDER = "/usr/local/go/bin"
"""Where Go's own packages install it, often without adding it to the path."""


class GoClient(ClientProcess):
    """One process with the official Go client."""

    language = "Go"

    def pull_consumer(self, group: str, topic: str, **options: object) -> "PullConsumer":
        """Options: expression or sql, from, batchSize (default: 0), manual. Without manual it polls all the time."""
        consumer = PullConsumer(self, self.name("consumer"))
        self.order("start_pull_consumer", id=consumer.id, group=group, topic=topic, **options)
        return consumer


class PullConsumer(Consumer):
    def pull(self, topic: str, **place: object) -> list[ReceivedMessage]:
        """Pull once: at a place (broker, queueId, offset), or from the next queue, at its committed offset."""
        pulled = self._order("pull", topic=topic, **place)
        return msgspec.convert(pulled, list[ReceivedMessage])


@contextmanager
def go_client(program: Path, name_server: str, folder: Path) -> Iterator[GoClient]:
    """Start the client; its logs and the offset files of broadcast consumers stay in `folder`."""
    environment = {"HOME": str(folder), "ROCKETMQ_GO_LOG_LEVEL": "warn"}
    with client_process([str(program), name_server], folder, environment) as process:
        yield GoClient(process, client_version())


def client_version() -> str:
    """Return the client's version in go.mod."""
    [line] = [line for line in (SOURCES / "go.mod").read_text().splitlines() if "rocketmq-client-go/v2 v" in line]
    return line.rpartition(" v")[2]


def build() -> Path:
    """Build the program where that is still to do; skip the test where that is impossible."""
    compiler = find_compiler()
    if compiler is None:
        official.unavailable(f"no go on the path, nor in {USUAL_FOLDER}")
    inputs = sorted([*SOURCES.glob("*.go"), SOURCES / "go.mod", SOURCES / "go.sum"])
    made = official.BUILD / "go" / f"client-{official.fingerprint(inputs)}"
    with official.locked(made.parent):
        if not made.exists():
            with official.whole(made) as unfinished:
                _compile(compiler, unfinished)
    return made


def find_compiler() -> str | None:
    return shutil.which("go") or shutil.which("go", path=USUAL_FOLDER)


def _compile(compiler: str, program: Path) -> None:
    def run(*words: str) -> str | None:
        # "local": do not fetch another compiler.
        return official.run([compiler, *words], BUILD_TIMEOUT_S, cwd=SOURCES, environment={"GOTOOLCHAIN": "local"})

    if (output := run("mod", "download")) is not None:
        official.unavailable(f"Go could not fetch rocketmq-client-go {client_version()}: {output[-500:]}")
    if (output := run("build", "-o", str(program), ".")) is not None:
        pytest.fail(f"the Go sources do not compile:\n{output}")
