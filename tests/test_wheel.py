"""The wheel, in an environment that has only what it asks for, and far from the working tree."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
TINY = (
    *("budget.env_steps=400", "population.size=2", "env.num_envs=2", "evaluation.every=100"),
    *("evaluation.episodes=2", "evaluation.confirm_episodes=2", "evaluation.final_episodes=2"),
)


def run(*words: object, **options) -> str:
    done = subprocess.run(
        [str(word) for word in words], capture_output=True, text=True, timeout=300, **options
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def built(folder: Path) -> Path:
    """The wheel of a copy of the sources: nothing is written into the working tree."""
    source = folder / "source"
    shutil.copytree(ROOT / "evorl", source / "evorl", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "-q", "-w", folder)
    run(sys.executable, "-m", "pip", "wheel", *options, source)
    (wheel,) = folder.glob("*.whl")
    return wheel


def needed(package: Distribution) -> dict[str, Distribution]:
    """What a package asks for, and what that asks for, by name; all of it is installed here."""
    found: dict[str, Distribution] = {}
    seen, waiting = set(), [(package, "")]
    while waiting:
        asking, extra = waiting.pop()
        for text in asking.requires or []:
            wanted = Requirement(text)
            if wanted.marker is not None and not wanted.marker.evaluate({"extra": extra}):
                continue
            other = found.setdefault(wanted.name, distribution(wanted.name))
            for option in ("", *wanted.extras):
                if (wanted.name, option) not in seen:
                    seen.add((wanted.name, option))
                    waiting.append((other, option))
    return found


def link(package: Distribution, site: Path) -> None:
    """Lend an installed package to another environment."""
    installed = Path(sysconfig.get_path("purelib"))
    for name in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
        if not (site / name).exists():
            (site / name).symlink_to(installed / name)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The scripts of an environment with the wheel and what it asks for; from there, no way back.

    Downloading torch again would take minutes: so what is installed here is linked.
    """
    folder = tmp_path_factory.mktemp("wheel")
    wheel, venv = built(folder), folder / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    pip = (sys.executable, "-m", "pip", "--python", venv / "bin" / "python")
    run(*pip, "install", "-q", "--no-deps", "--no-index", wheel)
    site = venv / "lib" / PYTHON / "site-packages"
    (metadata,) = site.glob("evorl-*.dist-info")
    for package in needed(PathDistribution(metadata)).values():
        link(package, site)
    return venv / "bin"


@pytest.fixture
def evorl(installed, tmp_path):
    """Run a command of the wheel in an empty folder."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}

    def call(*words, command="evorl"):
        return run(installed / command, *words, cwd=tmp_path, env=kept)

    return call


def test_it_is_the_wheel(evorl, installed):
    code = "import evorl, importlib.util as u; print(evorl.__file__, u.find_spec('pytest'))"
    where, pytest_here = evorl("-c", code, command="python").split()
    assert Path(where).is_relative_to(installed.parent)
    assert pytest_here == "None"  # nothing but what it asks for


def test_everything_that_belongs_to_it_is_there(installed):
    """Types, the web files of the report, the licence."""
    site = installed.parent / "lib" / PYTHON / "site-packages"
    ours = {path.relative_to(ROOT) for path in (ROOT / "evorl").rglob("*") if path.is_file()}
    theirs = {path.relative_to(site) for path in (site / "evorl").rglob("*")}
    assert not {path for path in ours if "__pycache__" not in path.parts} - theirs
    assert Path("evorl/py.typed") in theirs
    (licence,) = site.glob("evorl-*.dist-info/licenses/LICENSE")
    assert "Apache License" in licence.read_text()


def test_init_train_and_report(evorl, tmp_path):
    assert "budget" in json.loads(evorl("schema"))["properties"]
    evorl("init", "CartPole-v1")
    (config,) = tmp_path.glob("*.yaml")
    evorl("train", config.name, *TINY)
    (directory,) = (tmp_path / "runs").iterdir()
    assert json.loads((directory / "summary.json").read_text())["env_steps"] == 400
    evorl("report", directory.relative_to(tmp_path))
    (page,) = directory.glob("*.html")
    assert "<style>" in page.read_text()
