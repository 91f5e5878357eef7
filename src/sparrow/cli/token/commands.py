"""`sparrow token`: issue, change, list, show and revoke tokens for brokers with `auth = true`."""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from sparrow.cli.admin_client import ConnectionOptions
from sparrow.cli.output import JsonOption, format_time, print_json, print_note, print_table
from sparrow.cli.parameter_groups import with_parameter_groups
from sparrow.model.access.token import parse_token_kind
from sparrow.operations.errors import NotFound
from sparrow.wire.bodies import TokenDescription

app = typer.Typer(help="Issue, change, list, show and revoke tokens.", no_args_is_help=True)

TokenNameArgument = Annotated[str, typer.Argument(help="Name of the token, which clients use as their access key.")]
KindOption = Annotated[
    str,
    typer.Option("--type", help="p: the token may produce; c: it may consume; pc: both; a: it may also administer."),
]
TopicsOption = Annotated[
    list[str] | None,
    typer.Option("--topic", help="Topic it may use: a name, a prefix (orders-*) or *; repeatable. Without it: all."),
]
GroupsOption = Annotated[
    list[str] | None,
    typer.Option("--group", help="Consumer group it may use: a name, a prefix or *; repeatable. Without it: all."),
]
AddressesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--from",
        help="IP address or network (10.0.0.0/8) that its requests may come from; repeatable. Without it: from "
        "anywhere.",
    ),
]


class TokenRow(msgspec.Struct, frozen=True, kw_only=True):
    """A token in a list."""

    name: str
    type: str
    """p: it may produce; c: it may consume; pc: both; a: it may also administer; acl: its ACL decides."""
    topics: list[str]
    """Names and prefixes (`orders-*`) of the topics that it may use; `*`: all."""
    groups: list[str]
    """Names and prefixes of the consumer groups that it may use; `*`: all."""
    addresses: list[str]
    """IP addresses and networks that its requests may come from; empty: from anywhere."""
    acl: list[str]
    """Entries of its ACL (`mqadmin createAcl`), such as `Allow Pub,Sub on Topic:orders-*`."""
    issued_ms: int
    disabled_ms: int | None
    revoked_ms: int | None


class IssuedToken(msgspec.Struct, frozen=True, kw_only=True):
    """What a client signs its requests with."""

    access_key: str
    secret_key: str


@app.command()
@with_parameter_groups
def issue(
    name: TokenNameArgument,
    kind: KindOption,
    topics: TopicsOption = None,
    groups: GroupsOption = None,
    addresses: AddressesOption = None,
    token_secret_key: Annotated[
        str | None,
        typer.Option(
            "--token-secret-key",
            envvar="SPARROW_TOKEN_SECRET_KEY",
            help="Secret key of a token that some brokers have, to issue it on the others; better by the variable.",
        ),
    ] = None,
    as_json: JsonOption = False,
    *,
    connection: ConnectionOptions,
) -> None:
    """Issue a token on all brokers, and print its keys: the secret key is shown only now.

    Example: [bold]sparrow token issue billing --type c --topic 'orders-*' --group billing --from 10.0.0.0/8[/bold]
    """
    token_kind = parse_token_kind(kind)
    issued = connection.run(
        lambda admin: admin.issue_token(
            name, token_kind, topics=topics, groups=groups, addresses=addresses, secret_key=token_secret_key
        )
    )
    if as_json:
        print_json(IssuedToken(access_key=issued.access_key, secret_key=issued.secret_key))
        return
    typer.echo(f"access key {issued.access_key}")
    typer.echo(f"secret key {issued.secret_key}")


@app.command()
@with_parameter_groups
def change(
    name: TokenNameArgument,
    kind: KindOption,
    topics: TopicsOption = None,
    groups: GroupsOption = None,
    addresses: AddressesOption = None,
    *,
    connection: ConnectionOptions,
) -> None:
    """Replace what a token may do, from its next request on. Its keys stay; limits that are left out do not.

    Example: [bold]sparrow token change billing --type c --topic 'orders-*' --group billing --from 10.0.0.0/8[/bold]
    """
    token_kind = parse_token_kind(kind)
    connection.run(
        lambda admin: admin.change_token(name, token_kind, topics=topics, groups=groups, addresses=addresses)
    )
    typer.echo(f"changed the token {name}")


@app.command("list")
@with_parameter_groups
def list_all(as_json: JsonOption = False, *, connection: ConnectionOptions) -> None:
    """List all tokens, without their secret keys.

    Example: [bold]sparrow token list[/bold]
    """
    rows = [_row(token) for token in connection.run(lambda admin: admin.tokens())]
    if as_json:
        print_json(rows)
    elif rows:
        _print_rows(rows)
    else:
        print_note("There are no tokens: issue one with `sparrow token issue NAME --type p`.")


@app.command()
@with_parameter_groups
def show(name: TokenNameArgument, as_json: JsonOption = False, *, connection: ConnectionOptions) -> None:
    """Show what a token may do, without its secret key.

    Example: [bold]sparrow token show billing[/bold]
    """
    found = next((token for token in connection.run(lambda admin: admin.tokens()) if token.name == name), None)
    if found is None:
        raise NotFound("token", name, "`sparrow token list` shows them")
    if as_json:
        print_json(_row(found))
    else:
        _print_rows([_row(found)])


@app.command()
@with_parameter_groups
def revoke(name: TokenNameArgument, *, connection: ConnectionOptions) -> None:
    """Revoke a token. Its name cannot be used again.

    Example: [bold]sparrow token revoke billing[/bold]
    """
    connection.run(lambda admin: admin.revoke_token(name))
    typer.echo(f"revoked the token {name}")


def _row(token: TokenDescription) -> TokenRow:
    return TokenRow(
        name=token.name,
        type=token.type,
        topics=token.topics,
        groups=token.groups,
        addresses=token.addresses,
        acl=token.acl,
        issued_ms=token.created_ms,
        disabled_ms=token.disabled_ms,
        revoked_ms=token.revoked_ms,
    )


def _print_rows(rows: list[TokenRow]) -> None:
    columns = ("token", "type", "topics", "groups", "from", "issued", "revoked", "disabled", "acl")
    print_table(
        columns,
        [
            (
                row.name,
                row.type,
                " ".join(row.topics),
                " ".join(row.groups),
                " ".join(row.addresses) or "anywhere",
                format_time(row.issued_ms),
                format_time(row.revoked_ms),
                format_time(row.disabled_ms),
                "; ".join(row.acl),
            )
            for row in rows
        ],
    )
