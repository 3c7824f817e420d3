"""Imports point one way, and the light parts stay light."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests.synthetic import make_family_run

PACKAGE = Path(__file__).parent.parent / "evorl"

# From the bottom to the top: a module imports from lower rows, or from its own package.
ROWS = [
    ("", "errors"),  # "" is evorl/__init__.py: it imports when it is used
    ("seeding", "machine", "genome"),
    ("config", "bus"),
    ("networks", "experience", "envs", "distributed"),
    ("algorithms",),
    ("population",),
    ("evolution", "actors"),
    ("runs",),
    ("reporting",),
    ("pipeline",),
    ("training",),
    ("shipping",),
    ("cli",),
    ("__main__",),
]
ROW = {part: row for row, parts in enumerate(ROWS) for part in parts}
FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = {path: ".".join(path.relative_to(PACKAGE).with_suffix("").parts) for path in FILES}
DOORS = {path for path in FILES if path.name == "__init__.py" and len(NAMES[path].split(".")) <= 2}
DOORS -= {PACKAGE / "cli" / "__init__.py"}  # which loads one command, and is nobody's to enter


def part_of(path):
    """The top-level module or package below evorl that a file belongs to."""
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return "" if first == "__init__" else first


def imported(path):
    """Every absolute name that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def inside(path):
    """What a file imports from evorl, without the prefix; doors import when they are asked."""
    for name in [] if path in DOORS else imported(path):
        if name == "evorl" or name.startswith("evorl."):
            yield name.removeprefix("evorl").removeprefix(".")


def test_every_part_has_a_row():
    assert {part_of(path) for path in FILES} <= set(ROW)


@pytest.mark.parametrize("path", FILES, ids=NAMES.values())
def test_imports_point_downwards(path):
    own = part_of(path)
    for name in inside(path):
        other = name.split(".")[0]
        other = other if other in ROW else ""  # `from evorl import __version__`
        assert other == own or ROW[other] < ROW[own], f"{NAMES[path]} imports evorl.{name}"


@pytest.mark.parametrize("path", FILES, ids=NAMES.values())
def test_other_rooms_are_entered_by_their_door(path):
    own = part_of(path)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("evorl."):
            room, _, inner = node.module.removeprefix("evorl.").partition(".")
            if room != own and room != "cli":
                assert not inner, f"{NAMES[path]} imports from evorl.{room}.{inner}"


def test_every_door_gives_what_it_shows():
    for path in DOORS:
        package = "evorl" if path.parent == PACKAGE else f"evorl.{path.parent.name}"
        door = importlib.import_module(package)
        assert all(hasattr(door, name) for name in door.__all__)
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = door.nothing


def test_no_module_imports_itself_in_a_circle():
    known = {name.removesuffix(".__init__") or "": path for path, name in NAMES.items()}
    known = {("" if name == "__init__" else name): path for name, path in known.items()}

    def needs(name):
        for target in inside(known[name]):
            while target not in known:
                target = target.rpartition(".")[0]
            yield target

    done, open_ = set(), []

    def visit(name):
        assert name not in open_, " → ".join([*open_, name])
        if name not in done:
            open_.append(name)
            for other in needs(name):
                visit(other)
            done.add(open_.pop())

    for name in known:
        visit(name)


def test_accelerate_stays_in_its_corners():
    users = {
        NAMES[path]
        for path in FILES
        if any(name.split(".")[0] == "accelerate" for name in imported(path))
    }
    assert users == {"distributed.accelerator", "experience.loader", "reporting.tracking"}


SLOW = ("torch", "numpy", "pydantic", "gymnasium", "accelerate", "scipy")
LIST_RUNS = "from evorl.cli import cli; cli.main(['runs', {folder!r}], standalone_mode=False)"


def loaded(code):
    """Which of the slow modules there are after this code has run in a process of its own."""
    code = f"import sys; {code}; print('loaded:', *sorted(set(sys.modules) & set({SLOW})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1].removeprefix("loaded:").split()


@pytest.mark.parametrize(
    "code",
    [
        "import evorl",
        "from evorl.cli import cli; cli.main(['--help'], standalone_mode=False)",
        "import evorl.config, evorl.errors",
    ],
)
def test_what_is_light_loads_nothing_slow(code):
    assert loaded(code) == []


def test_listing_runs_loads_nothing_slow(tmp_path):
    make_family_run(tmp_path, "finished")
    make_family_run(tmp_path, "stopped").remove_summary()
    assert loaded(LIST_RUNS.format(folder=str(tmp_path))) == []


@pytest.mark.parametrize(
    ("words", "light"),
    [
        (["lineage", "family"], ["pydantic"]),
        (["schedule", "family"], ["pydantic"]),
        (["report", "family"], ["pydantic"]),
        (["report", "family", "other"], ["pydantic", "numpy"]),
        (["compare", "family", "other"], ["numpy"]),
    ],
    ids=" ".join,
)
def test_looking_at_runs_loads_no_torch(tmp_path, monkeypatch, words, light):
    monkeypatch.chdir(tmp_path)
    for name in ("family", "other"):
        make_family_run(tmp_path, name)
    run = f"from evorl.cli import cli; cli.main({words!r}, standalone_mode=False)"
    assert set(loaded(run)) <= set(light)


def test_reading_a_configuration_does_not_load_torch():
    code = "from evorl.config.sections import EnvConfig; from evorl.config import RunConfig"
    assert loaded(code) == ["pydantic"]
