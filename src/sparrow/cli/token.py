"""`sparrow token`: issue, list and revoke tokens for brokers with `auth = true`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sparrow.cli.admin_client import AccessKeyOption, NameServersOption, SecretKeyOption, open_admin
from sparrow.client.options import DEFAULT_NAME_SERVERS
from sparrow.model.token import parse_token_kind

app = typer.Typer(help="Issue, list and revoke tokens.", no_args_is_help=True)

TokenNameArgument = Annotated[str, typer.Argument(help="Name of the token, which clients use as their access key.")]


@app.command()
def issue(
    name: TokenNameArgument,
    kind: Annotated[str, typer.Option("--type", help="p: the token may produce; c: it may consume.")],
    name_servers: NameServersOption = DEFAULT_NAME_SERVERS,
    access_key: AccessKeyOption = None,
    secret_key: SecretKeyOption = None,
) -> None:
    """Issue a token on all brokers. If the name exists, print its keys again.

    Example: [bold]sparrow token issue billing --type c[/bold]
    """
    token_kind = parse_token_kind(kind)
    with open_admin(name_servers, access_key, secret_key) as admin:
        issued = admin.issue_token(name, token_kind)
    typer.echo(f"access key {issued.access_key}")
    typer.echo(f"secret key {issued.secret_key}")


@app.command("list")
def list_all(
    name_servers: NameServersOption = DEFAULT_NAME_SERVERS,
    access_key: AccessKeyOption = None,
    secret_key: SecretKeyOption = None,
) -> None:
    """List all tokens, without their secret keys.

    Example: [bold]sparrow token list[/bold]
    """
    with open_admin(name_servers, access_key, secret_key) as admin:
        tokens = admin.tokens()
    table = Table("token", "type", "issued", "revoked")
    for token in tokens:
        table.add_row(token.name, token.type, _time(token.created_ms), _time(token.revoked_ms))
    Console().print(table)


@app.command()
def revoke(
    name: TokenNameArgument,
    name_servers: NameServersOption = DEFAULT_NAME_SERVERS,
    access_key: AccessKeyOption = None,
    secret_key: SecretKeyOption = None,
) -> None:
    """Revoke a token. Its name cannot be used again.

    Example: [bold]sparrow token revoke billing[/bold]
    """
    with open_admin(name_servers, access_key, secret_key) as admin:
        admin.revoke_token(name)
    typer.echo(f"revoked the token {name}")


def _time(ms: int | None) -> str:
    return "" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
