"""`sparrow token`: who may produce and who may consume, on brokers that ask (`auth = true`)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from sparrow.client import Admin
from sparrow.model.token import Credentials, parse_token_kind

app = typer.Typer(help="Issue, list and revoke tokens.", no_args_is_help=True)

TokenNameArgument = Annotated[str, typer.Argument(help="The token's name, which clients give as their access key.")]
NameServersOption = Annotated[str, typer.Option(help="TokenNameArgument servers: host:port, several parted by ';'.")]
AccessKeyOption = Annotated[
    str | None, typer.Option(help="An admin token of the brokers', if they ask.", envvar="SPARROW_ACCESS_KEY")
]
SecretKeyOption = Annotated[
    str | None, typer.Option(help="Its secret. Better in the environment.", envvar="SPARROW_SECRET_KEY")
]
LOCAL_NAME_SERVER = "127.0.0.1:9876"


@app.command()
def issue(
    name: TokenNameArgument,
    kind: Annotated[str, typer.Option("--type", help="p: it may produce; c: it may consume.")],
    name_servers: NameServersOption = LOCAL_NAME_SERVER,
    access_key: AccessKeyOption = None,
    secret_key: SecretKeyOption = None,
) -> None:
    """Issue a token on all brokers, or show again the one of that name.

    Example: [bold]sparrow token issue billing --type c[/bold]
    """
    known = parse_token_kind(kind)
    with _admin(name_servers, access_key, secret_key) as admin:
        issued = admin.issue_token(name, known)
    typer.echo(f"access key {issued.access_key}")
    typer.echo(f"secret key {issued.secret_key}")


@app.command("list")
def list_all(
    name_servers: NameServersOption = LOCAL_NAME_SERVER,
    access_key: AccessKeyOption = None,
    secret_key: SecretKeyOption = None,
) -> None:
    """List all tokens, without their secrets.

    Example: [bold]sparrow token list[/bold]
    """
    with _admin(name_servers, access_key, secret_key) as admin:
        tokens = admin.tokens()
    table = Table("token", "type", "issued", "revoked")
    for token in tokens:
        table.add_row(token.name, token.type, _time(token.created_ms), _time(token.revoked_ms))
    Console().print(table)


@app.command()
def revoke(
    name: TokenNameArgument,
    name_servers: NameServersOption = LOCAL_NAME_SERVER,
    access_key: AccessKeyOption = None,
    secret_key: SecretKeyOption = None,
) -> None:
    """Revoke a token, for good: its name stays taken.

    Example: [bold]sparrow token revoke billing[/bold]
    """
    with _admin(name_servers, access_key, secret_key) as admin:
        admin.revoke_token(name)
    typer.echo(f"token {name} is revoked")


def _admin(name_servers: str, access_key: str | None, secret_key: str | None) -> Admin:
    if access_key is None and secret_key is None:
        return Admin(name_servers)
    return Admin(name_servers, credentials=Credentials(access_key or "", secret_key or ""))


def _time(ms: int | None) -> str:
    return "" if ms is None else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
