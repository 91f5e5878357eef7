"""Job keys and default checkpoint paths, derived from the arguments of a job."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import msgspec

CHECKPOINTS_FOLDER = "sparrow-pipelines"
"""The folder for default checkpoints, in the working directory."""


def derive_job_key(job: str, arguments: object) -> str:
    """Return the key of a job: equal arguments give equal keys, on any machine."""
    encoded = msgspec.json.encode(msgspec.to_builtins(arguments), order="deterministic")
    return f"{job}-{sha256(encoded).hexdigest()[:24]}"


def default_checkpoint_path(job: str, arguments: object) -> str:
    """Return the default checkpoint of a job, derived from its arguments: the same command continues its work."""
    return str(Path.cwd() / CHECKPOINTS_FOLDER / job / derive_job_key(job, arguments).rpartition("-")[2])
