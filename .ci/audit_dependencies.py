"""Look up the packages of requirements.lock in PyPI's advisory database, with pip-audit.

A known vulnerability fails. An advisory service that cannot be reached does not: what was not looked up is named, and
the next run tries again.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LOCK = Path(__file__).resolve().parent.parent / "requirements.lock"
TIMEOUT_S = 60
"""For all packages together: without an answer by then, the service counts as unreachable."""
ACCEPTED: dict[str, str] = {}
"""Identifiers of advisories that do not concern Sparrow, each with the reason."""
LINES_SHOWN = 3


def main() -> int:
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "--requirement", str(LOCK)]
    command += ["--format", "json", "--progress-spinner", "off", "--timeout", "10"]
    for identifier in ACCEPTED:
        command += ["--ignore-vuln", identifier]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        print(f"pip-audit: not audited: the advisory service did not answer within {TIMEOUT_S} s")
        return 0
    try:
        packages = json.loads(run.stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = "\n".join(run.stderr.strip().splitlines()[-LINES_SHOWN:])
        print(f"pip-audit: not audited: the advisory service could not be asked:\n{last}")
        return 0
    return judge(packages)


def judge(packages: list[dict[str, Any]]) -> int:
    """Print what pip-audit found; return 1 if a package has a known vulnerability."""
    skipped = [package for package in packages if "skip_reason" in package]
    found = list(_vulnerabilities(packages))
    print(
        f"pip-audit: {len(packages) - len(skipped)} of {len(packages)} packages audited, {len(found)} vulnerabilities"
    )
    if skipped:
        print(f"pip-audit: not audited: {len(skipped)} packages; the first: {skipped[0]['skip_reason']}")
    for line in found:
        print(line)
    if found:
        print(
            "Update the package with `make lock`, or say in .ci/audit_dependencies.py why it does not concern Sparrow."
        )
    return 1 if found else 0


def _vulnerabilities(packages: list[dict[str, Any]]) -> Iterator[str]:
    for package in packages:
        for found in package.get("vulns", ()):
            fixed = ", ".join(found["fix_versions"]) or "no version yet"
            yield f"{package['name']} {package['version']}: {found['id']}, fixed in {fixed}"


if __name__ == "__main__":
    sys.exit(main())
