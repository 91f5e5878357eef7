"""The exports of `sparrow` and `sparrow.aio`: complete, light and documented."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest

import sparrow
from sparrow import aio
from sparrow.client import options
from sparrow.model import errors

SRC = Path(sparrow.__file__).parent


@pytest.mark.parametrize("module", [sparrow, aio])
def test_every_exported_name_can_be_imported_and_has_a_docstring(module):
    for name in module.__all__:
        found = getattr(module, name)
        if inspect.isclass(found) or inspect.ismodule(found):
            assert found.__doc__, name


def exported(module) -> set[str]:
    return set(module.__all__)


def type_checker_imports(path: Path) -> set[str]:
    [block] = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    names = {alias.name for node in imports for alias in node.names}
    from_errors = {node.module for node in imports if node.names[0].name == "*"} == {errors.__name__}
    return names - {"*"} | set(errors.__all__) if from_errors else names


@pytest.mark.parametrize("module", [sparrow, aio])
def test_type_checkers_see_the_exported_names(module):
    own = type_checker_imports(Path(module.__file__))
    assert "*" in own
    assert own - {"*"} | type_checker_imports(SRC / "exports.py") == exported(module) - {"__version__"}


def test_both_flavours_export_the_same_names():
    assert exported(aio) == exported(sparrow) - {"__version__", "aio", "errors"}
    for name in ("Admin", "Consumer", "PopConsumer", "Producer"):
        assert getattr(sparrow, name) is not getattr(aio, name)


def test_every_error_of_the_model_is_exported():
    kinds = {name for name, kind in vars(errors).items() if inspect.isclass(kind)}
    assert kinds == set(errors.__all__)
    assert kinds <= exported(sparrow)


def test_public_methods_have_docstrings():
    for module in (sparrow, aio):
        for name in ("Admin", "Consumer", "PopConsumer", "Producer", "Message", "StoredMessage"):
            kind = getattr(module, name)
            members = inspect.getmembers(
                kind, lambda member: inspect.isfunction(member) or isinstance(member, property)
            )
            missing = [member for member, found in members if not member.startswith("_") and not inspect.getdoc(found)]
            assert not missing, f"{name}: {missing}"


def test_importing_sparrow_loads_none_of_its_packages():
    script = "import sys, sparrow; print(*[name for name in sys.modules if name.startswith('sparrow.')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["sparrow.exports"]  # the table of the public names


@pytest.mark.parametrize("kind", ["Producer", "Consumer", "PopConsumer"])
def test_every_option_has_a_default(kind):
    defaults = {
        "Producer": options.PRODUCER_DEFAULTS,
        "Consumer": options.CONSUMER_DEFAULTS,
        "PopConsumer": options.POP_CONSUMER_DEFAULTS,
    }
    assert get_type_hints(getattr(options, f"{kind}Options")).keys() == defaults[kind].keys()


def test_an_unknown_option_is_refused_with_a_list_of_the_known_ones():
    with pytest.raises(TypeError, match=r"Producer has no option linger; did you mean linger_ms\?$"):
        aio.Producer(linger=3)  # type: ignore[call-arg]


def test_old_names_of_the_client_warn():
    from sparrow import client

    with pytest.warns(DeprecationWarning, match=r"sparrow.client.Later is now sparrow.RetryLater"):
        assert client.Later is sparrow.RetryLater
