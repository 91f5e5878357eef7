"""The `sparrow` command, also as `python -m sparrow`."""

import sys

from sparrow.extras import require
from sparrow.model.errors import MissingExtra


def entry() -> None:
    """Run the command line, or say in one line which extra it needs."""
    try:
        require("typer", "rich", "pydantic_settings", extra="cli", for_="the command sparrow")
    except MissingExtra as error:
        print(f'sparrow: {error}; to run brokers, "sparrowmq[server]"', file=sys.stderr)
        raise SystemExit(1) from None
    from sparrow.cli.main import entry as run

    run()


if __name__ == "__main__":
    entry()
