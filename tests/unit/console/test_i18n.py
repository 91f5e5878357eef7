"""Both languages have the same keys with the same placeholders, and templates use only keys that exist."""

import re
import string
from pathlib import Path

import pytest

from sparrow.console import i18n
from sparrow.settings.console import ConsoleSettings

CONSOLE = Path(i18n.__file__).resolve().parents[1]
USED = re.compile(r"""\bt\(\s*['"]([\w.-]+)['"]\s*[,)]""")
COMPUTED = re.compile(r"""\b(?:t|known)\(\s*f?['"]([\w-]+)\.(?:[\w-]*['"]\s*~|\{|[\w-]+_\{)""")


def placeholders(text: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}


def sources() -> dict[str, str]:
    files = [*CONSOLE.joinpath("templates").rglob("*.html"), *CONSOLE.joinpath("pages").rglob("*.py")]
    return {path.name: path.read_text(encoding="utf-8") for path in files}


def test_both_languages_have_the_same_keys() -> None:
    english, chinese = (i18n.load_texts(name) for name in ("en", "zh"))
    assert english.keys() - chinese.keys() == set()
    assert chinese.keys() - english.keys() == {
        f"setting_meaning.console.{name}" for name in ConsoleSettings.model_fields
    }


def test_both_languages_have_the_same_placeholders() -> None:
    english, chinese = (i18n.load_texts(name) for name in ("en", "zh"))
    assert [key for key in english if placeholders(english[key]) != placeholders(chinese[key])] == []


def test_chinese_texts_are_chinese() -> None:
    # Words that both languages write alike.
    same = {"ID", "JSON", "Java", "UTF-8", "SQL92", "Spark"}
    english, chinese = (i18n.load_texts(name) for name in ("en", "zh"))
    assert [key for key in english if english[key] == chinese[key] and english[key] not in same] == []


def test_every_key_in_a_template_or_page_exists() -> None:
    known = i18n.load_texts("en")
    missing = {f"{name}: {key}" for name, text in sources().items() for key in USED.findall(text) if key not in known}
    assert missing == set()


def test_every_text_is_used() -> None:
    texts = sources().values()
    used = {key for text in texts for key in USED.findall(text)}
    sections = {section for text in texts for section in COMPUTED.findall(text)}
    unused = [key for key in i18n.load_texts("en") if key not in used and key.partition(".")[0] not in sections]
    assert unused == []


@pytest.mark.parametrize(
    ("cookie", "accepted", "language"),
    [
        ("zh", "en", "zh"),
        (None, "zh-CN,zh;q=0.9,en;q=0.8", "zh"),
        (None, "fr;q=0.9,en;q=0.2,zh;q=0.5", "zh"),
        (None, "fr", "en"),
        ("xx", "", "en"),
        (None, "en;q=x,zh", "zh"),
    ],
)
def test_the_language_is_the_cookies_else_the_browsers(cookie: str | None, accepted: str, language: str) -> None:
    assert i18n.choose_language(cookie, accepted) == language
