"""`python -m sparrow`."""

from sparrow.cli.main import entry

entry()
