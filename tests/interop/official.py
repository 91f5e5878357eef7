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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest

SOURCES = Path(__file__).parent / "java"
BUILD = Path(__file__).parents[2] / "build" / "interop"
FETCH_TIMEOUT_S = 600
COMPILE_TIMEOUT_S = 120

# For short-lived processes on a small machine: no second compiler, no collector threads, IPv4 only.
_JVM_FLAGS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Djava.net.preferIPv4Stack=true")
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

    def command(self, main: str, *args: str, user_home: Path, heap_mb: int) -> list[str]:
        """Return the command line that runs a main class and writes nothing outside `user_home`."""
        return [
            "java",
            *_JVM_FLAGS,
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


def kit(version: str) -> Kit:
    """Fetch and compile missing files; skip the test where that is impossible."""
    _need("java")
    folder = BUILD / version
    folder.mkdir(parents=True, exist_ok=True)
    pom, sources = [SOURCES / "pom.xml"], sorted(SOURCES.glob("src/*.java"))
    made = Kit(
        version,
        jars=folder / f"jars-{_fingerprint(pom)}",
        classes=folder / f"classes-{_fingerprint(pom + sources)}",
        home=folder / "home",
    )
    with open(folder / "lock", "w") as lock:  # two test processes may need the same jars
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.jars.exists():
            with _whole(made.jars) as unfinished:
                _fetch(version, unfinished)
        if not made.classes.exists():
            with _whole(made.classes) as unfinished:
                _compile(sources, made.jars, unfinished)
        for part in ("namesrv", "broker", "tools"):
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


def _fingerprint(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


@contextmanager
def _whole(folder: Path) -> Iterator[Path]:
    """Yield a folder to fill; it gets its final name on success, so that an existing folder is complete."""
    unfinished = folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    yield unfinished
    unfinished.rename(folder)


def _fetch(version: str, jars: Path) -> None:
    _need("mvn")
    pom = str(SOURCES / "pom.xml")
    goal = ["dependency:copy-dependencies", f"-DoutputDirectory={jars}"]
    command = ["mvn", "-q", "-B", "-f", pom, f"-Drocketmq.version={version}", *goal]
    output = _run(command, FETCH_TIMEOUT_S)
    if output is not None:
        unavailable(f"Maven could not fetch RocketMQ {version}: {output[-500:]}")


def _compile(sources: Sequence[Path], jars: Path, classes: Path) -> None:
    _need("javac")
    command = ["javac", "-nowarn", "-encoding", "UTF-8", "-cp", f"{jars}/*", "-d", str(classes)]
    output = _run([*command, *map(str, sources)], COMPILE_TIMEOUT_S)
    if output is not None:
        pytest.fail(f"the Java sources do not compile:\n{output}")


def _run(command: Sequence[str], timeout_s: float) -> str | None:
    """Return None, or the output of a failed command."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return f"it took more than {timeout_s} s"
    return None if done.returncode == 0 else done.stdout + done.stderr
