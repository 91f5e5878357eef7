"""`sparrow cluster`: create and operate replica sets."""

from __future__ import annotations

import typer

from sparrow.cli.cluster import init, members, promote, status, topics, transfer, verify

app = typer.Typer(
    help="Create and operate replica sets: brokers with one name and one log, of which one leads.",
    no_args_is_help=True,
)
app.command("init", epilog=init.EXAMPLES)(init.init)
app.command("status", epilog=status.EXAMPLES)(status.status)
app.command("add", epilog=members.ADD_EXAMPLES)(members.add)
app.command("remove", epilog=members.REMOVE_EXAMPLES)(members.remove)
app.command("min", epilog=members.MIN_EXAMPLES)(members.change_min)
app.command("transfer", epilog=transfer.EXAMPLES)(transfer.transfer)
app.command("verify", epilog=verify.EXAMPLES)(verify.verify)
app.command("widen", epilog=topics.WIDEN_EXAMPLES)(topics.widen)
app.command("drain", epilog=topics.DRAIN_EXAMPLES)(topics.drain)
app.command("accept-loss", epilog=members.LOSS_EXAMPLES)(members.accept_loss)
app.command("promote")(promote.promote)
