"""`sparrow`: one command, one file a verb."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from sparrow import __version__
from sparrow.cli import bus, demo, pipeline, resend, store, token, up
from sparrow.model.errors import SparrowError

app = typer.Typer(
    name="sparrow",
    help="Sparrow, a RocketMQ-compatible message platform.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("up")(up.up)
app.command("broker")(up.broker)
app.command("name-server")(up.name_server)
app.command("demo")(demo.run)
app.command("resend", epilog=resend.EXAMPLES)(resend.resend)
app.add_typer(bus.app, name="bus")
app.add_typer(pipeline.app, name="pipeline")
app.add_typer(store.app, name="store")
app.add_typer(token.app, name="token")


def _version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"sparrow {__version__}")
        raise typer.Exit()


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and leave.", callback=_version, is_eager=True)
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show what happens inside.")] = False,
) -> None:
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )


def entry() -> None:
    """What the `sparrow` script runs: our own errors are a sentence, not a traceback."""
    try:
        app()
    except SparrowError as error:
        typer.secho(f"sparrow: {error}", fg=typer.colors.RED, err=True)
        raise SystemExit(1) from error
