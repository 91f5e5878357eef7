"""Every snippet of README and docs runs as printed, in the order printed. `tests/support/doc_snippets.py` says how."""

from __future__ import annotations

import logging
import re
import shutil
import sys
from pathlib import Path

import pytest
from tests.support.doc_snippets import ROOT, RUN_LANGUAGES, Block, blocks_of, running_page

EXEMPT_LANGUAGES = {"", "text", "toml", "dockerfile", "yaml", "mermaid", "packages"}
GENERATED = ROOT / "docs" / "api.md"
"""Its blocks are docstrings: excerpts that show one call."""
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
    blocks = blocks_of(page)
    if any("curl " in block.text for block in blocks) and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    for block in blocks:
        run_block(page_run, block)


def run_block(page_run, block: Block) -> None:
    try:
        page_run.run(block)
    except Exception as error:
        error.add_note(block.place)
        raise


def test_the_chinese_readme_has_the_snippets_and_the_links_of_the_english_one() -> None:
    english, chinese = ROOT / "README.md", CHINESE_PAGE

    def snippets(page: Path) -> list[tuple[str, str]]:
        return [(block.language, re.sub(r"#.*", "#", block.text)) for block in blocks_of(page)]

    def links(page: Path) -> set[str]:
        return set(re.findall(r"\]\(([^)]+)\)", page.read_text(encoding="utf-8"))) - {english.name, chinese.name}

    assert snippets(chinese) == snippets(english)
    assert links(chinese) == links(english)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_has_a_language_that_is_run_or_exempt(page: Path) -> None:
    unknown = {block.language for block in blocks_of(page)} - {*RUN_LANGUAGES, *EXEMPT_LANGUAGES}
    assert not unknown
