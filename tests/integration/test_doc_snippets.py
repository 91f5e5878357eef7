"""Every snippet of README and docs runs as printed, in the order printed. `tests/support/doc_snippets.py` says how."""

from __future__ import annotations

import logging
import os
import re
import sys
from pathlib import Path

import pytest
from tests.support.cli_examples import ExampleRunner, examples_of_page
from tests.support.databases import ServerNotInstalled, _program
from tests.support.doc_snippets import ROOT, RUN_LANGUAGES, blocks_of, running_page
from tests.support.spark import run_script
from tests.support.wait import wait_until

from sparrow import Admin, Consumer, DeadLetter, Message, Producer, StoredMessage
from sparrow.testing.platform import run_platform

EXEMPT_LANGUAGES = {"", "text", "json", "toml", "dockerfile", "yaml", "mermaid", "packages"}
GENERATED = ROOT / "docs" / "api.md"
"""Its blocks are docstrings: excerpts that show one call."""
SPARK_TIMEOUT_S = 500
SPARK_PAGE = ROOT / "docs" / "spark.md"
CLI_PAGE = ROOT / "docs" / "cli.md"
CHINESE_PAGE = ROOT / "README.zh-CN.md"
IN_MAKE_TEST = {ROOT / "README.md"}
"""What a new user reads first; `make thorough` runs the other pages, some of which start ten servers."""
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
    "page",
    [
        pytest.param(page, marks=[] if page in IN_MAKE_TEST else [pytest.mark.thorough])
        for page in RUN_PAGES
        if page not in (CHINESE_PAGE, SPARK_PAGE, CLI_PAGE)
    ],
    ids=lambda page: page.name,
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


CLI_SECTIONS = (
    *("topic create", "send", "topic list", "topic show", "message find", "message get", "tail"),
    *("group list", "group show", "resend", "group reset", "dlq list", "dlq show", "dlq redrive"),
    *("transaction list", "transaction half", "message delayed"),
    *("token list", "settings", "doctor"),
    *("topic update", "group delete", "topic delete"),
)
"""Sections of docs/cli.md in an order in which what they need is there."""
CLI_EXIT_CODES = {
    "sparrow message find orders --from 2h --to 1h --tag paid": 3,
    "sparrow group reset billing orders --offset 1200 --broker sparrow --queue 3": 1,
    "sparrow resend orders --group billing --offsets 1200 1299 --queue 3": 1,
    "sparrow resend orders --group billing --offsets 1 5 --priority low": 1,
}
"""Examples that name times, offsets or lanes that the small topic of the test has not."""


@pytest.mark.thorough
def test_examples_of_the_commands_run_against_a_platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    examples = examples_of_page()
    assert set(CLI_SECTIONS) == examples.keys(), "every block that is not marked is run"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "invoice.pdf").write_bytes(b"%PDF")
    (tmp_path / "orders.txt").write_text("one\ntwo\n")
    with run_platform(tmp_path / "data") as platform, Admin(platform.name_servers) as admin:
        runner = ExampleRunner(platform.name_servers, tmp_path)
        wrong = []
        for section in CLI_SECTIONS:
            if section == "message find":
                runner.ids = make_dead_letter(platform.name_servers, admin)
            for example in examples[section]:
                if section == "topic delete" and "orders" not in admin.topics():
                    admin.create_topic("orders", 1)
                code, printed = runner.run(example)
                # The machine may have faults that the doctor finds.
                if code != CLI_EXIT_CODES.get(example, 0) and (section, code) != ("doctor", 1):
                    wrong.append(f"{example}: exit code {code}: {printed}")
    assert not wrong, "\n".join(wrong)


def make_dead_letter(name_servers: str, admin: Admin) -> dict[str, str]:
    """Let group billing read the topic and refuse a message; return the ids that stand for the printed ones."""

    def refuse(message: StoredMessage) -> None:
        if message.body == b"bad":
            raise DeadLetter("no such customer")

    with Producer(name_servers) as producer:
        sent = producer.send(Message("orders", "shipped to Oslo", keys="order-9", tags="shipped"))
        producer.send(Message("orders", "bad"))
    with Consumer(name_servers, group="billing", consume_from="first", retries_max=0) as consumer:
        consumer.subscribe("orders")
        consumer.start(refuse)
        wait_until(lambda: admin.dead_letters("billing"), within_s=60)
        wait_until(lambda: admin.progress("billing", "orders").lag == 0, within_s=60)
    (dead,) = admin.dead_letters("billing")
    dead_id = dead.unique_key or ""
    return {"7F0000011A668BFC57735245EE120000": sent.message_id, "7F00000100002A9F0000000000000000": dead_id}


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
