"""Debian's Chromium for the browser tests: found or installed, and driven by the Playwright that is pinned to it.

`SPARROW_TEST_CHROMIUM` names another one. Playwright's own download of browsers is never used.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

from tests.support.databases import ServerNotInstalled, _program

PACKAGES = ("chromium", "fonts-noto-cjk")
MAJOR_MIN = 150
"""Playwright 1.64 is made for 156; it works with older ones down to here."""
LAUNCH_ARGUMENTS = ("--disable-dev-shm-usage", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1")
"""Containers have a small /dev/shm, in which large pages would crash. No page may reach another host."""

os.environ.setdefault("PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD", "1")


def find_chromium() -> Path:
    """Return the browser's path; install it as root on Debian; raise `ServerNotInstalled` if it cannot be had."""
    named = os.environ.get("SPARROW_TEST_CHROMIUM")
    return Path(named) if named else _program("chromium", "Chromium", PACKAGES)


def read_major_version(chromium: Path) -> int:
    """Return the major version that a browser reports."""
    said = subprocess.run((chromium, "--version"), capture_output=True, text=True, timeout=60, check=False).stdout
    found = re.search(r"(\d+)\.\d+\.\d+", said)
    return int(found[1]) if found else 0


if __name__ == "__main__":
    try:
        find_chromium()
    except ServerNotInstalled as missing:
        print(missing)
