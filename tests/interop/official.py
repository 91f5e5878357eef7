"""The official RocketMQ jars of one version, fetched with Maven, and our Java sources compiled against them.

Everything goes to build/interop/VERSION, into folders named by a hash of their inputs: a changed pom or source makes
new folders and leaves those alone that another test run may use. If Java, Maven or the registry is missing, the test
is skipped with a reason, unless SPARROW_INTEROP=require forbids it.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

SOURCES = Path(__file__).parent / "java"
PROXY_VERSION = "5.5.0"
GRPC_CLIENT_VERSION = "5.2.0"
BUILD = Path(__file__).parents[2] / "build" / "interop"
FETCH_TIMEOUT_S = 600
COMPILE_TIMEOUT_S = 120

# For short-lived processes on a small machine: no second compiler, no collector threads, IPv4 only.
QUICK_START_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Djava.net.preferIPv4Stack=true")
# Brokers unmap their files explicitly, which a modern JVM allows only with these flags.
_UNMAP_FLAGS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
# 4.9 reads a log configuration from its home directory and does not start without it; 5.x has one in its jars. Both
# write logs below user.home, which is a temporary folder for every process here.
_LOG_SETTINGS = """\
<configuration>
  <appender name="file" class="ch.qos.logback.core.FileAppender">
    <file>${user.home}/logs/warnings.log</file>
    <encoder><pattern>%d %p %t %logger - %m%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="file"/></root>
</configuration>
"""


class Kit(NamedTuple):
    """One version, ready to run."""

    version: str
    jars: Path
    classes: Path
    home: Path

    def command(
        self, main: str, *args: str, user_home: Path, heap_mb: int, jvm_flags: Sequence[str] = QUICK_START_FLAGS
    ) -> list[str]:
        """Return the command line that runs a main class and writes nothing outside `user_home`."""
        return [
            "java",
            *jvm_flags,
            *_UNMAP_FLAGS,
            f"-Xms{heap_mb}m",
            f"-Xmx{heap_mb}m",
            f"-Duser.home={user_home}",
            f"-Djava.io.tmpdir={user_home}",
            f"-Drocketmq.home.dir={self.home}",
            f"-Dlogback.configurationFile={self.home / 'conf' / 'logback_tools.xml'}",
            "-cp",
            f"{self.classes}{os.pathsep}{self.jars}/*",
            main,
            *args,
        ]


def kit(version: str, *, more_sources: Sequence[Path] = ()) -> Kit:
    """Return RocketMQ's servers, its remoting client and mqadmin; `more_sources` are compiled with the tests' own."""
    sources = [*sorted(SOURCES.glob("src/*.java")), *more_sources]
    return _kit(BUILD / version, version, SOURCES / "pom.xml", sources)


def proxy_kit() -> Kit:
    """Return RocketMQ's proxy."""
    return _kit(BUILD / f"proxy-{PROXY_VERSION}", PROXY_VERSION, SOURCES / "proxy" / "pom.xml", [])


def grpc_kit() -> Kit:
    """Return RocketMQ's gRPC client."""
    shared = [SOURCES / "src" / f"{name}.java" for name in ("CommandLoop", "Inbox", "Orders")]
    folder, sources = SOURCES / "grpc", sorted(SOURCES.glob("grpc/src/*.java"))
    return _kit(BUILD / f"grpc-{GRPC_CLIENT_VERSION}", GRPC_CLIENT_VERSION, folder / "pom.xml", shared + sources)


def _kit(folder: Path, version: str, pom: Path, sources: list[Path]) -> Kit:
    """Fetch and compile missing files; skip the test where that is impossible."""
    _need("java")
    made = Kit(
        version,
        jars=folder / f"jars-{fingerprint([pom])}",
        classes=folder / f"classes-{fingerprint([pom, *sources])}",
        home=folder / "home",
    )
    with locked(folder):
        if not made.jars.exists():
            with whole(made.jars) as unfinished:
                _fetch(version, pom, unfinished)
        if sources and not made.classes.exists():
            with whole(made.classes) as unfinished:
                _compile(sources, made.jars, unfinished)
        for part in ("namesrv", "broker", "tools", "proxy"):
            settings = made.home / "conf" / f"logback_{part}.xml"
            settings.parent.mkdir(parents=True, exist_ok=True)
            settings.write_text(_LOG_SETTINGS)
    return made


def unavailable(reason: str) -> NoReturn:
    if os.environ.get("SPARROW_INTEROP") == "require":
        pytest.fail(f"interop required: {reason}")
    pytest.skip(f"interop skipped: {reason}")


def _need(program: str) -> None:
    if shutil.which(program) is None:
        unavailable(f"no {program} on the path")


def fingerprint(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is made: two test processes may need the same files."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def whole(made: Path) -> Iterator[Path]:
    """Yield a folder or file to fill; it gets its final name on success, so that what exists is complete."""
    unfinished = made.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    yield unfinished
    unfinished.rename(made)


def _fetch(version: str, pom: Path, jars: Path) -> None:
    _need("mvn")
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    command = ["mvn", "-q", "-B", "-f", str(pom), f"-Drocketmq.version={version}", *goal]
    output = run(command, FETCH_TIMEOUT_S)
    if output is not None:
        unavailable(f"Maven could not fetch RocketMQ {version}: {output[-500:]}")


def _compile(sources: Sequence[Path], jars: Path, classes: Path) -> None:
    _need("javac")
    command = ["javac", "-nowarn", "-encoding", "UTF-8", "-cp", f"{jars}/*", "-d", str(classes)]
    output = run([*command, *map(str, sources)], COMPILE_TIMEOUT_S)
    if output is not None:
        pytest.fail(f"the Java sources do not compile:\n{output}")


def run(
    command: Sequence[str], timeout_s: float, *, cwd: Path | None = None, environment: Mapping[str, str] | None = None
) -> str | None:
    """Return None, or the output of a failed command."""
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=os.environ | (environment or {}),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"it took more than {timeout_s} s"
    return None if done.returncode == 0 else done.stdout + done.stderr
