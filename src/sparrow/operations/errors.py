"""Errors of operations: what an operator asked for does not exist, or is not as it was when it was planned."""

from __future__ import annotations

from sparrow.model.errors import Refused


class NotFound(Refused):
    """A message, a token or something else that the operator named does not exist, or no longer."""

    def __init__(self, kind: str, name: str, remedy: str) -> None:
        super().__init__(kind, name, remedy)
        self.kind, self.name, self.remedy = kind, name, remedy

    def __str__(self) -> str:
        return f"there is no {self.kind} {self.name!r}: {self.remedy}"


class AlreadyExists(Refused):
    """What should be created exists."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(kind, name)
        self.kind, self.name = kind, name

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} exists already: choose another name, or change it"


class PlanChanged(Refused):
    """No plan was named, or the state has changed since it was made, so that it would do something else."""

    def __init__(self, what: str, given: str, current: str) -> None:
        super().__init__(what, given, current)
        self.what, self.given, self.current = what, given, current

    def __str__(self) -> str:
        if not self.given:
            return (
                f"{self.what} needs the plan of a dry run: look at the plan {self.current!r} and name it, or force it"
            )
        return (
            f"{self.what} would not do what the plan {self.given!r} says, because the state has changed: look at the "
            f"new plan {self.current!r}, or force it"
        )


class MembersOnline(Refused):
    """Members of the group are online, and would go on committing their own offsets."""

    def __init__(self, group: str, count: int) -> None:
        super().__init__(group, count)
        self.group, self.count = group, count

    def __str__(self) -> str:
        return f"{self.count} members of group {self.group!r} are online: stop them first, or force it"
