"""docs/api.md lists every public name of Sparrow, and each has a docstring."""

import importlib.util
import inspect
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "api.md"


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_api", ROOT / "docs" / "generate_api.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


GENERATOR = _generator()


def test_every_public_name_has_a_docstring() -> None:
    missing = []
    for module, name, thing in GENERATOR.public_names():
        if (inspect.isclass(thing) or inspect.isfunction(thing)) and not inspect.getdoc(thing):
            missing.append(f"{module.__name__}.{name}")
        if inspect.isclass(thing) and thing.__module__.startswith("sparrow"):
            missing += [
                f"{module.__name__}.{name}.{member_name}"
                for member_name, member in GENERATOR.public_members(thing)
                if not inspect.getdoc(member.fget if isinstance(member, property) else member)
            ]
    assert not missing, "no docstring: " + ", ".join(sorted(missing))


def test_the_api_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == GENERATOR.page(), "run: make docs"
