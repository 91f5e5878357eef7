"""The `sparrow` command. Each subcommand is imported only when it is used."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

from sparrow import __version__
from sparrow.cli.exit_codes import ExitCode, exit_code_of
from sparrow.cli.output_pipe import discard_output, is_output_closed
from sparrow.extras import require
from sparrow.model.errors import MissingExtra, SparrowError

COMMAND_MODULES = {
    "up": "server.up",
    "broker": "server.up",
    "name-server": "server.up",
    "console": "console",
    "demo": "demo.commands",
    "topic": "topic.commands",
    "group": "group.commands",
    "message": "message.commands",
    "send": "send.command",
    "tail": "tail.command",
    "resend": "resend.command",
    "dlq": "dlq.commands",
    "transaction": "transaction.commands",
    "bus": "bus.commands",
    "pipeline": "pipeline.commands",
    "store": "store.commands",
    "token": "token.commands",
    "cluster": "cluster.commands",
    "settings": "settings.command",
    "doctor": "doctor.command",
    "bench": "bench.command",
}
"""The module of each command below `sparrow.cli`. It has an `app` with subcommands, or a function named like it."""

COMMAND_EXTRAS = dict.fromkeys(("up", "broker", "name-server", "demo", "store", "cluster", "bench"), "server") | {
    "console": "console",
    "pipeline": "spark",
}
"""The extra of each command whose module loads NumPy and Arrow."""


class LazyCommandGroup(TyperGroup):
    """A command group that imports a command when it is used, so that `--help` and short commands start fast."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, in the order of the help page."""
        return list(COMMAND_MODULES)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import and return a command; for an unknown name, import all, so that the error suggests a close one."""
        for name in [cmd_name] if cmd_name in COMMAND_MODULES else COMMAND_MODULES:
            if name not in self.commands:
                loaded = typer.main.get_command(_app_with(name))
                assert isinstance(loaded, TyperGroup), "an app with a callback is a group"
                self.commands[name] = loaded.commands[name]
        return super().get_command(ctx, cmd_name)

    def invoke(self, ctx: Any) -> Any:
        """Run the command; end quietly if the reader of its output has closed the pipe."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            if not is_output_closed():
                raise
            discard_output()
            raise typer.Exit(ExitCode.OUTPUT_CLOSED) from None


def _app_with(name: str) -> typer.Typer:
    parent = typer.Typer(callback=lambda: None, rich_markup_mode="rich", add_completion=False)
    try:
        if name in COMMAND_EXTRAS:
            require("numpy", "pyarrow", extra=COMMAND_EXTRAS[name], for_=f"sparrow {name}")
        module = import_module(f"sparrow.cli.{COMMAND_MODULES[name]}")
    except MissingExtra as error:
        _add_unavailable(parent, name, error)
        return parent
    if hasattr(module, "app"):
        parent.add_typer(module.app, name=name)
    else:
        function = getattr(module, name.replace("-", "_"))
        parent.command(name, epilog=getattr(module, "EXAMPLES", None))(function)
    return parent


def _add_unavailable(parent: typer.Typer, name: str, error: MissingExtra) -> None:
    """Add a command that only says which extra it needs, so that `--help` lists it and the others work."""
    settings = {"ignore_unknown_options": True, "allow_extra_args": True}

    @parent.command(name, help=escape(f"Not installed: {error}"), context_settings=settings, add_help_option=False)
    def raise_missing_extra() -> None:
        raise error


app = typer.Typer(
    name="sparrow",
    cls=LazyCommandGroup,
    help="Sparrow, a RocketMQ-compatible message platform.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(is_given: bool) -> None:
    if is_given:
        typer.echo(f"sparrow {__version__}")
        raise typer.Exit()


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log at debug level.")] = False,
) -> None:
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.WARNING, format="%(levelname)s %(name)s: %(message)s"
    )


def entry() -> None:
    """Run the `sparrow` script. Sparrow's own errors are printed as a sentence, without a traceback."""
    try:
        app()
    except SparrowError as error:
        typer.secho(f"sparrow: {error}", fg=typer.colors.RED, err=True)
        raise SystemExit(exit_code_of(error)) from error
