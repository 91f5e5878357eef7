"""`sparrow`: one command, one file a verb."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from sparrow import __version__
from sparrow.model.errors import SparrowError

COMMAND_MODULES = {
    "up": "server.up",
    "broker": "server.up",
    "name-server": "server.up",
    "demo": "demo.commands",
    "resend": "resend",
    "bus": "bus.commands",
    "pipeline": "pipeline.commands",
    "store": "store.commands",
    "token": "token",
}
"""The module of each, with an `app` of verbs of its own or a function of its name."""


class LazyCommandGroup(TyperGroup):
    """Loads a verb when it is asked for: who wants one need not wait for all the others."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMAND_MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for verb in (
            [cmd_name] if cmd_name in COMMAND_MODULES else COMMAND_MODULES
        ):  # all: what was meant is sought among them
            if verb not in self.commands:
                loaded = typer.main.get_command(_app_with(verb))
                assert isinstance(loaded, TyperGroup), "it has a callback"
                self.commands[verb] = loaded.commands[verb]
        return super().get_command(ctx, cmd_name)


def _app_with(verb: str) -> typer.Typer:
    module = import_module(f"sparrow.cli.{COMMAND_MODULES[verb]}")
    holding = typer.Typer(callback=lambda: None, rich_markup_mode="rich", add_completion=False)
    if hasattr(module, "app"):
        holding.add_typer(module.app, name=verb)
    else:
        function = getattr(module, verb.replace("-", "_"))
        holding.command(verb, epilog=getattr(module, "EXAMPLES", None))(function)
    return holding


app = typer.Typer(
    name="sparrow",
    cls=LazyCommandGroup,
    help="Sparrow, a RocketMQ-compatible message platform.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


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
