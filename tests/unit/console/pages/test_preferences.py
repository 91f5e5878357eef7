"""A redirect stays on the console, whatever a form says."""

import pytest

from sparrow.console.pages.frame.preferences import local_path


@pytest.mark.parametrize("path", ["/", "/topics/orders?kind=all&q=a%20b", "/bus/received"])
def test_paths_of_the_console_are_kept(path: str) -> None:
    assert local_path(path) == path


@pytest.mark.parametrize(
    "path",
    [
        "",
        "topics",
        "//example.com",
        "/\\example.com",
        "https://example.com",
        "/a\r\nSet-Cookie: x",
        "/a\\b",
        "/\t/evil",
    ],
)
def test_everything_else_leads_to_the_overview(path: str) -> None:
    assert local_path(path) == "/"
