"""The public names: all there, none of them imported before it is used."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import evorl

HEAVY = ("torch", "pydantic", "numpy", "gymnasium", "accelerate", "click")


def test_importing_evorl_imports_nothing_heavy():
    code = f"import sys, evorl; dir(evorl); print([n for n in {HEAVY} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_name_is_there_and_known_to_type_checkers():
    tree = ast.parse(Path(evorl.__file__).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.name: node.module for node in block.body for alias in node.names}
    assert set(typed) == set(evorl.__all__) == set(dir(evorl))
    for name, module in typed.items():
        assert getattr(evorl, name) is getattr(importlib.import_module(module), name)


def test_an_unknown_name_is_refused():
    with pytest.raises(AttributeError, match="module 'evorl' has no attribute 'Nothing'"):
        evorl.Nothing  # noqa: B018
    with pytest.raises(ImportError):
        from evorl import Nothing  # noqa: F401


@pytest.mark.parametrize(
    "name", ["demo_online", "demo_online_distributed", "demo_task", "demo_a3c"]
)
def test_demos_import_from_evorl_and_nothing_deeper(name):
    path = Path(__file__).parent.parent / "demos" / f"{name}.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        names += [str(node.module)] if isinstance(node, ast.ImportFrom) else []
        assert not any(found.startswith("evorl.") for found in names)
