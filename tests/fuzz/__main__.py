"""Run the fuzz targets: `python -m tests.fuzz [TARGET …]`, with SPARROW_FUZZ inputs in all.

With atheris (`make fuzz` installs it where there is a wheel) inputs are chosen by the coverage that they reach, and
those that reach more are kept in `build/fuzz`; without it they are random changes of the seeds. An input that fails is
written to `build/fuzz` and named.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CORPUS = ROOT / "build" / "fuzz"
DEFAULT_INPUTS = 1_000_000
COSTS = {"http_requests": 100}
"""Inputs of these targets cost so many times as much as others: a request runs the whole console."""
INPUT_BYTES_MAX = 4_096
INSTRUMENTED = ["sparrow.wire", "sparrow.broker.sql92", "sparrow.console"]
"""Packages whose coverage chooses the inputs: those with decoders."""


def main(names: list[str]) -> int:
    inputs = int(os.environ.get("SPARROW_FUZZ", DEFAULT_INPUTS))
    has_atheris = importlib.util.find_spec("atheris") is not None
    if names[:1] == ["--child"]:
        _run_atheris(names[1], inputs)  # its share
    if not has_atheris:
        print("atheris is not installed: random inputs, without coverage")
    from tests.fuzz.targets import TARGETS

    failed, names = [], names or list(TARGETS)
    for name in names:
        begun, share = time.monotonic(), inputs // len(names) // COSTS.get(name, 1)
        if has_atheris:
            child = [sys.executable, "-m", "tests.fuzz", "--child", name]
            is_good = subprocess.run(child, check=False, env=os.environ | {"SPARROW_FUZZ": f"{share}"}).returncode == 0
        else:
            is_good = _run_random(name, share)
        print(
            f"{name}: {'passed' if is_good else 'FAILED'}, {share:,} inputs in {time.monotonic() - begun:.0f} s",
            flush=True,
        )
        if not is_good:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def _run_random(name: str, inputs: int) -> bool:
    from tests.fuzz.mutations import mutated
    from tests.fuzz.seeds import SEEDS
    from tests.fuzz.targets import TARGETS

    for data in mutated(SEEDS[name], inputs, seed=int(time.time())):
        try:
            TARGETS[name](data)
        except Exception as error:
            CORPUS.mkdir(parents=True, exist_ok=True)
            path = CORPUS / f"failed-{name}"
            path.write_bytes(data)
            print(f"{name}: {type(error).__name__}: {error}\n{path}: {data!r}")
            return False
    return True


def _run_atheris(name: str, inputs: int) -> None:
    """Fuzz one target; does not return."""
    import atheris

    with atheris.instrument_imports(include=INSTRUMENTED):
        from tests.fuzz.seeds import SEEDS
        from tests.fuzz.targets import TARGETS
    folder = CORPUS / name
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(SEEDS[name]):
        (folder / f"seed-{number}").write_bytes(seed)
    options = [f"-runs={inputs}", f"-max_len={INPUT_BYTES_MAX}", f"-artifact_prefix={CORPUS}/failed-{name}-"]
    atheris.Setup(
        [name, *options, "-timeout=120", "-rss_limit_mb=4096", "-verbosity=0", "-print_final_stats=1", str(folder)],
        TARGETS[name],
    )
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
