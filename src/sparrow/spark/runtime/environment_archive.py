"""The Python environment for the executors of a cluster, packed as one archive from the installed packages.

    environment/bin/python                          a script that finds a Python of this minor version and runs it
    environment/lib/python3.11/site-packages/...    Sparrow, its dependencies, and the packages in `also`

Nothing is downloaded: files are copied according to the RECORD lists of the installers. PySpark is left out, as a
cluster brings its own. Compiled packages are copied too, so the executors need the same operating system and
architecture.

Streams need the environment on the driver as well: the process that plans a stream's batches runs
`./environment/bin/python` in the driver's directory. `use_environment_archive` unpacks it there.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from sparrow.model.errors import Refused, SettingsError
from sparrow.spark.runtime.tar_archive import extract

DISTRIBUTION_NAME = "sparrowmq"
EXECUTOR_EXTRAS = frozenset({"compression", "server"})
"""The extras of Sparrow whose packages executors need: those of `spark`, without Spark itself."""
PACKAGE_NAMES = ("sparrow", "pyspark_sparrow")
ENVIRONMENT_FOLDER = "environment"
PYTHON_NAME = f"python{sys.version_info.major}.{sys.version_info.minor}"
SITE_PACKAGES = f"lib/{PYTHON_NAME}/site-packages"
# Tests, C headers and sources of the two large packages: a quarter of the archive, and not used by any job.
EXCLUDED_FILES = re.compile(
    r"(^|/)__pycache__/|^(numpy|pyarrow)/(.*/)?(tests|include)/|^(numpy|pyarrow)/.*\.(pyx|pxd|pxi|a)$"
)
STAMP_FILE = ".made-from"

PackProgress = Callable[[int, int], None]  # bytes packed, total bytes


class PackagedFile(NamedTuple):
    """A file of the archive."""

    name: str  # relative to site-packages
    path: Path


class PackagingFailed(SettingsError):
    """An installed package cannot be packaged."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(name, None, "this Python environment", "an installation by pip")
        self.name, self.why = name, why

    def __str__(self) -> str:
        return f"cannot package {self.name}: {self.why}. Install it with pip, then try again"


def build_environment_archive(out: Path, *, also: Sequence[str] = (), progress: PackProgress | None = None) -> Path:
    """Write the archive atomically. `also` names further installed packages, such as pandas."""
    entries = sorted(
        {entry for name in dependency_closure([DISTRIBUTION_NAME, *also]) for entry in distribution_files(name)}
    )
    total = sum(entry.path.stat().st_size for entry in entries)
    out.parent.mkdir(parents=True, exist_ok=True)
    descriptor, draft = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}-")
    os.close(descriptor)
    try:
        with tarfile.open(draft, "w:gz", compresslevel=6) as archive:
            _add_text(archive, "bin/python", launcher_script(), mode=0o755)
            _add_text(archive, "bin/python3", launcher_script(), mode=0o755)
            done = 0
            for entry in entries:
                archive.add(
                    entry.path.resolve(), f"{SITE_PACKAGES}/{entry.name}", recursive=False, filter=_without_owner
                )
                done += entry.path.stat().st_size
                if progress is not None:
                    progress(done, total)
        os.chmod(draft, 0o644)
        os.replace(draft, out)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
    return out


def use_environment_archive(archive: Path, *, directory: Path | None = None) -> dict[str, str]:
    """Unpack the archive for the driver, and return the session options that make executors use it.

    `directory` is the working directory of the driver; by default the current directory.
    """
    directory = Path.cwd() if directory is None else directory
    status = archive.stat()
    stamp = f"{archive.resolve()} {status.st_size} {status.st_mtime_ns}"
    home = directory / ENVIRONMENT_FOLDER
    if not (home / STAMP_FILE).is_file() or (home / STAMP_FILE).read_text() != stamp:
        if home.exists() and not (home / STAMP_FILE).is_file():
            raise Refused(
                f"cannot unpack the environment to {home}: a folder with this name exists and is not an unpacked "
                "environment. Remove it, or run the driver in another directory"
            )
        draft = Path(tempfile.mkdtemp(dir=directory, prefix=f".{ENVIRONMENT_FOLDER}-"))
        extract(archive, draft)
        (draft / STAMP_FILE).write_text(stamp)
        draft.chmod(0o755)
        if home.exists():
            shutil.rmtree(home)
        draft.rename(home)
    return {
        "spark.archives": f"{archive.resolve()}#{ENVIRONMENT_FOLDER}",
        "spark.pyspark.python": f"./{ENVIRONMENT_FOLDER}/bin/python",
    }


def launcher_script() -> str:
    """Return the script `bin/python`. It has no fixed path to an interpreter, so it works wherever it is unpacked."""
    here = Path(sys.base_prefix, "bin", PYTHON_NAME)
    return f"""\
#!/bin/sh
# Made by sparrow.spark.runtime.environment_archive: runs {PYTHON_NAME} with the packages beside this file.
root=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd) || exit 1
for python in {shlex.quote(str(here))} "$(command -v {PYTHON_NAME})"; do
  if [ -x "$python" ]; then
    PYTHONPATH="$root/{SITE_PACKAGES}${{PYTHONPATH:+:$PYTHONPATH}}" PYTHONNOUSERSITE=1
    export PYTHONPATH PYTHONNOUSERSITE
    exec "$python" "$@"
  fi
done
echo "{PYTHON_NAME} is on neither {shlex.quote(str(here))} nor the PATH of this host: install it there" >&2
exit 127
"""


def _add_text(archive: tarfile.TarFile, name: str, text: str, *, mode: int) -> None:
    data = text.encode()
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(data), mode
    archive.addfile(member, io.BytesIO(data))


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


# -- installed packages -----------------------------------------------------------------------------------------------


def dependency_closure(names: Sequence[str]) -> list[str]:
    """Return these packages and all their dependencies. A missing dependency is for another platform or Python."""
    waiting = [PackageWithExtras(canonical_name(name), _extras_for_executors(name)) for name in names]
    for name, _ in waiting:
        try:
            distribution(name)
        except PackageNotFoundError:
            raise PackagingFailed(name, "it is not installed") from None
    found: set[PackageWithExtras] = set()
    packages: set[str] = set()
    while waiting:
        package = waiting.pop()
        if package in found:
            continue
        found.add(package)
        try:
            needs = distribution(package.name).requires or []
        except PackageNotFoundError:
            continue
        packages.add(package.name)
        waiting += [need for text in needs if (need := required_package(text, package.extras)) is not None]
    return sorted(packages)


def _extras_for_executors(name: str) -> frozenset[str]:
    return EXECUTOR_EXTRAS if canonical_name(name) == DISTRIBUTION_NAME else frozenset()


class PackageWithExtras(NamedTuple):
    """A package and those of its extras that are wanted."""

    name: str
    extras: frozenset[str] = frozenset()


def required_package(requirement: str, extras: frozenset[str] = frozenset()) -> PackageWithExtras | None:
    """Return `lz4` for `lz4>=4.3; sys_platform != 'win32'`; None for the requirement of an extra that is not wanted."""
    text, _, marker = requirement.partition(";")
    name = re.match(r"\s*([A-Za-z0-9._-]+)\s*(?:\[([^\]]*)\])?", text)
    of_extra = re.search(r"\bextra\s*==\s*['\"]([^'\"]+)['\"]", marker)
    if name is None or (of_extra is not None and of_extra[1] not in extras):
        return None
    return PackageWithExtras(canonical_name(name[1]), frozenset((name[2] or "").replace(" ", "").split(",")) - {""})


def canonical_name(name: str) -> str:
    """Return the canonical name of a distribution."""
    return re.sub(r"[-_.]+", "-", name).lower()


def distribution_files(name: str) -> Iterator[PackagedFile]:
    """Yield the files of a distribution below site-packages."""
    installed = distribution(name)
    if installed.files is None:
        raise PackagingFailed(name, "its installer left no list of files (RECORD)")
    for listed in installed.files:
        path = Path(str(installed.locate_file(listed)))
        # Scripts and manuals lie outside of site-packages; scripts contain the path of this machine's interpreter.
        outside = listed.is_absolute() or ".." in listed.parts
        if not outside and not EXCLUDED_FILES.search(listed.as_posix()) and listed.suffix != ".pth" and path.is_file():
            yield PackagedFile(listed.as_posix(), path)
    if is_editable(installed):
        if name != DISTRIBUTION_NAME:
            raise PackagingFailed(name, "it is installed in editable mode")
        for package in PACKAGE_NAMES:
            yield from package_files(package)


def is_editable(installed: Distribution) -> bool:
    """Return whether the distribution is installed in editable mode."""
    url = json.loads(installed.read_text("direct_url.json") or "{}")
    return bool(url.get("dir_info", {}).get("editable"))


def package_files(package: str) -> Iterator[PackagedFile]:
    """Yield the files of an importable package."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise PackagingFailed(package, "it cannot be imported")
    root = Path(spec.origin).parent
    for path in root.rglob("*"):
        name = PurePosixPath(package, path.relative_to(root).as_posix()).as_posix()
        if path.is_file() and not EXCLUDED_FILES.search(name):
            yield PackagedFile(name, path)
