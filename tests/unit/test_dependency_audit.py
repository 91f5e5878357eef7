"""`make lint` fails for a vulnerable package, and only for that."""

import runpy
from pathlib import Path

judge = runpy.run_path(str(Path(__file__).parents[2] / ".ci" / "audit_dependencies.py"))["judge"]

CLEAN = {"name": "msgspec", "version": "0.20.0", "vulns": []}
SKIPPED = {"name": "lz4", "skip_reason": "Dependency not found on PyPI and could not be audited: lz4 (4.4.0)"}
VULNERABLE = {
    "name": "jinja2",
    "version": "2.4.1",
    "vulns": [{"id": "PYSEC-2014-8", "fix_versions": ["2.7.2"], "aliases": [], "description": "temporary files"}],
}


def test_a_vulnerable_package_fails_and_is_named(capsys) -> None:
    assert judge([CLEAN, VULNERABLE, SKIPPED]) == 1
    assert "jinja2 2.4.1: PYSEC-2014-8, fixed in 2.7.2" in capsys.readouterr().out


def test_a_package_that_could_not_be_looked_up_is_told_and_does_not_fail(capsys) -> None:
    assert judge([CLEAN, SKIPPED]) == 0
    text = capsys.readouterr().out
    assert "1 of 2 packages audited, 0 vulnerabilities" in text
    assert "not audited: 1 packages; the first: Dependency not found" in text
