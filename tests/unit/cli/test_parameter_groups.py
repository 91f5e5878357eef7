"""Commands whose parameters are grouped in dataclasses."""

from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from sparrow.cli.parameter_groups import with_parameter_groups


@dataclass(frozen=True, kw_only=True)
class SpanParameters:
    since: Annotated[str | None, typer.Option(help="Start.")] = None
    limit: Annotated[int, typer.Option("--limit", "-l", min=1)] = 10


@with_parameter_groups
def show(
    topic: Annotated[str, typer.Argument()],
    span: SpanParameters,
    tag: Annotated[list[str] | None, typer.Option()] = None,
) -> None:
    """Show a topic."""
    typer.echo(f"{topic} {span} {tag}")


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["orders"], "orders SpanParameters(since=None, limit=10) None"),
        (
            ["orders", "--since", "-1h", "-l", "3", "--tag", "a", "--tag", "b"],
            "orders SpanParameters(since='-1h', limit=3) ['a', 'b']",
        ),
    ],
)
def test_fields_of_a_group_are_options_of_the_command(arguments: list[str], shown: str) -> None:
    app = typer.Typer()
    app.command()(show)
    assert CliRunner().invoke(app, arguments).output.strip() == shown


def test_the_help_lists_fields_with_their_help_texts_and_limits() -> None:
    app = typer.Typer()
    app.command()(show)
    shown = CliRunner().invoke(app, ["--help"]).output
    assert "Show a topic." in shown
    assert "Start." in shown
    assert CliRunner().invoke(app, ["orders", "--limit", "0"]).exit_code == 2


def test_two_groups_with_the_same_field_are_a_programming_error() -> None:
    def twice(first: SpanParameters, second: SpanParameters) -> None: ...

    with pytest.raises(AssertionError, match="two parameters 'since'"):
        with_parameter_groups(twice)
