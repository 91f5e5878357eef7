"""mqadmin's commands. They report no failure by exit status or exception, so tests check their output only."""

import re
from typing import NamedTuple

from tests.interop.java import JavaClient

from sparrow.model.access.token import Credentials


class Mqadmin(NamedTuple):
    java: JavaClient
    credentials: Credentials | None = None
    """Sign the requests."""

    def run(self, verb: str, *words: str) -> str:
        """Return all output, including the stack trace of a failure."""
        keys = {}
        if self.credentials is not None:
            keys = {"accessKey": self.credentials.access_key, "secretKey": self.credentials.secret_key}
        printed: str = self.java.order("mqadmin", words=[verb, *words], **keys)
        return printed

    def table(self, verb: str, *words: str) -> list[dict[str, str]]:
        return rows(self.run(verb, *words))


def rows(printed: str) -> list[dict[str, str]]:
    """Return the lines between a `#Heading  #Heading` line and the next empty one, by heading.

    Valid for the leading columns only: some tables separate their last columns by a single blank.
    """
    found: list[dict[str, str]] = []
    headings: list[str] = []
    for line in printed.splitlines():
        if line.startswith("#"):
            headings = [heading.strip() for heading in line.split("#")[1:]]
        elif not line.strip():
            headings = []
        elif headings:
            found.append(dict(zip(headings, re.split(r"\s{2,}", line.strip()), strict=False)))
    return found


def fields(printed: str) -> dict[str, str]:
    """Return the lines of the form `Name: value`."""
    return {match[1].strip(): match[2].strip() for match in re.finditer(r"^([^:\n]+):(.*)$", printed, re.MULTILINE)}
