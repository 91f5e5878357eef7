"""Job keys and checkpoint paths, derived from a job's arguments."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import msgspec

CHECKPOINTS_FOLDER = "sparrow-pipelines"
"""Where checkpoints are that nobody named, in the working directory."""


def derive_job_key(job: str, arguments: object) -> str:
    """The name of a piece of work: the same arguments give the same name, whoever runs it."""
    said = msgspec.json.encode(msgspec.to_builtins(arguments), order="deterministic")
    return f"{job}-{sha256(said).hexdigest()[:24]}"


def default_checkpoint_path(job: str, arguments: object) -> str:
    """The checkpoint of a job that was given none: by its arguments, so that the same command goes on with its work."""
    return str(Path.cwd() / CHECKPOINTS_FOLDER / job / derive_job_key(job, arguments).rpartition("-")[2])
