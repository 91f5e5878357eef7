"""Python packages that only this comparison needs: clients of peers, and matplotlib.

pip puts them into build/versus, not into the project's environment: some of them want other versions of packages that
the project has.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

from bench._harness import ROOT
from bench.versus.peers.peer import PeerMissing
from tests.interop import official

FOLDER = ROOT / "build" / "versus"
REQUIREMENTS = {
    "celery": ("celery[redis]>=5.4",),
    "confluent_kafka": ("confluent-kafka>=2.5",),
    "matplotlib": ("matplotlib>=3.9",),
    "procrastinate": ("procrastinate>=3.0",),
}
INSTALL_TIMEOUT_S = 600


def import_package(name: str, *, is_fetch_allowed: bool) -> ModuleType:
    """Return a package, fetched if needed. Packages of the project's environment go before what it brings along."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        folder = fetch_package(name, is_fetch_allowed=is_fetch_allowed)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        importlib.invalidate_caches()
    return importlib.import_module(name)


def fetch_package(name: str, *, is_fetch_allowed: bool) -> Path:
    """Return the folder with a package and all its requirements; raise `PeerMissing` where it cannot be had."""
    folder = FOLDER / name
    with official.locked(FOLDER):
        if folder.exists():
            return folder
        if not is_fetch_allowed:
            raise PeerMissing(f"{name} is not installed yet, and a smoke run fetches nothing")
        with official.whole(folder) as unfinished:
            options = ("--quiet", "--disable-pip-version-check", "--target", str(unfinished))
            command = (sys.executable, "-m", "pip", "install", *options, *REQUIREMENTS[name])
            try:
                failure = official.run(command, INSTALL_TIMEOUT_S, environment={"PYTHONPATH": ""})
            except (OSError, subprocess.SubprocessError) as error:
                failure = str(error)
            if failure is not None:
                raise PeerMissing(f"pip could not fetch {' '.join(REQUIREMENTS[name])}: {failure[-300:]}")
    return folder


def environment_with(folder: Path) -> dict[str, str]:
    """Return the environment of a process that prefers the packages of this folder."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(ROOT / "src"), str(ROOT)))}
