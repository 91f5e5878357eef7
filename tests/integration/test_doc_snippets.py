"""Every snippet of README and docs runs as printed, in the order printed. `tests/support/doc_snippets.py` says how."""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path

import pytest
from tests.support.databases import ServerNotInstalled, _program
from tests.support.doc_snippets import ROOT, RUN_LANGUAGES, blocks_of, running_page
from tests.support.spark import run_script

EXEMPT_LANGUAGES = {"", "text", "toml", "dockerfile", "yaml", "mermaid", "packages"}
GENERATED = ROOT / "docs" / "api.md"
"""Its blocks are docstrings: excerpts that show one call."""
SPARK_TIMEOUT_S = 500
SPARK_PAGE = ROOT / "docs" / "spark.md"
CHINESE_PAGE = ROOT / "README.zh-CN.md"
PAGES = sorted({ROOT / "README.md", ROOT / "README.zh-CN.md", *(ROOT / "docs").glob("*.md")} - {GENERATED})
RUN_PAGES = [page for page in PAGES if any(block.language in RUN_LANGUAGES for block in blocks_of(page))]


@pytest.fixture
def page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database_servers):
    """Yield a page to run in an empty folder, which is the current one and the first of the search path."""
    names = {"mysql": "mariadb", "postgresql": "postgresql"}
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    known, logger = set(sys.modules), logging.getLogger("sparrow")
    handlers, level = list(logger.handlers), logger.level
    with running_page(tmp_path, lambda kind: database_servers(names[kind]).new_database()) as page:
        for name, value in page.environment.items():
            monkeypatch.setenv(name, value)
        yield page
    logger.handlers[:], logger.level = handlers, level
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.mark.timeout(300)  # some pages start ten servers, which takes long on a busy machine
@pytest.mark.parametrize(
    "page", [page for page in RUN_PAGES if page not in (CHINESE_PAGE, SPARK_PAGE)], ids=lambda page: page.name
)
def test_every_snippet_of_a_page_runs_as_printed(page: Path, page_run) -> None:
    if any("curl " in block.text for block in blocks_of(page)):
        install_curl()
    page_run.run_page(page)


def install_curl() -> None:
    """Install curl as the servers of other tests are installed; without the right to do so, skip the test."""
    try:
        _program("curl", "curl", ("curl",))
    except ServerNotInstalled as missing:
        if os.environ.get("CI"):  # in CI, a skipped test would hide a gap
            raise
        pytest.skip(str(missing))


SPARK_SCRIPT = """
import os
import sys
from pathlib import Path

from tests.support.doc_snippets import running_page
from tests.support.spark import start_script_session

page, database_url = sys.argv[1:]
start_script_session("docs")
with running_page(Path.cwd(), lambda kind: database_url) as run:
    os.environ.update(run.environment)
    run.run_page(Path(page))
"""
"""Runs in a process of its own: Spark resolves relative paths in the folder in which its Java was started."""


@pytest.mark.thorough
@pytest.mark.timeout(SPARK_TIMEOUT_S + 60)
def test_every_snippet_about_spark_runs_as_printed(tmp_path: Path, database_servers) -> None:
    url = database_servers("postgresql").new_database()
    done = run_script(
        SPARK_SCRIPT, str(SPARK_PAGE), url, folder=tmp_path, master="local[2,4]", timeout_s=SPARK_TIMEOUT_S
    )
    assert done.code == 0, f"{done.output}\n{done.errors}"


def test_the_chinese_readme_has_the_snippets_and_the_links_of_the_english_one() -> None:
    english, chinese = ROOT / "README.md", CHINESE_PAGE

    def snippets(page: Path) -> list[tuple[str, str]]:
        return [(block.language, re.sub(r"#.*", "#", block.text)) for block in blocks_of(page)]

    def links(page: Path) -> set[str]:
        return set(re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))) - {english.name, chinese.name}

    assert snippets(chinese) == snippets(english)
    assert links(chinese) == links(english)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_snippet_evades_the_run(page: Path) -> None:
    """Commands have a language, and settings a file name, by which a later block reads them."""
    for block in blocks_of(page):
        assert block.language in {*RUN_LANGUAGES, *EXEMPT_LANGUAGES}, f"{page.name}, line {block.line}"
        assert block.language or not re.match(r"(sparrow|pip|export|mqadmin) ", block.text), f"line {block.line}: no sh"
        assert block.language != "toml" or block.file_name, f"line {block.line}: no file name above the block"
