"""Export: an agent as files that run without evorl, compared with the agent before they count.

Every format is written into an empty folder beside agent.json, which says what the model reads and
gives, and is read back from its files alone.

Legend: B batch.
"""

import importlib
import json
import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

import evorl
from evorl.errors import ConfigError, EvorlError, RunError, one_line
from evorl.runs import FACTS, Agent, SavedAgent, load_agent, save_agent, write_facts
from evorl.seeding import generator

CHECKED = 1000  # random observations
ROUNDING = 1e-4  # of the largest output; other kernels add up in another order
TIES = 0.01  # the share of observations whose actions may differ: outputs within rounding

Array = NDArray[Any]
Model = Callable[[Array], dict[str, Array]]  # observations [B, …] to actions and outputs, by name


class Exported(NamedTuple):
    """What was written, and how near it is to the agent."""

    folder: Path
    files: list[str]
    difference: float  # largest of all outputs, as a share of the largest output


class Decision(nn.Module):
    """What a model gives: the action, and the outputs of the networks that it comes from."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent

    def forward(self, obs: Tensor) -> dict[str, Tensor]:
        """Actions [B] and outputs [B, …] for the environment's observations [B, …]."""
        action, outputs = self.agent.decide(obs)
        return {"action": action, **outputs}


def export_agent(agent: Agent, format: str, folder: Path, *, force: bool = False) -> Exported:
    """Write the agent into a new folder; nothing is changed if anything goes wrong."""
    chosen = FORMATS[format]
    check_packages(format)
    check_place(folder, force)
    facts = agent.saved.facts | {"export": {"format": format, "evorl": evorl.__version__}}
    with _aside(folder) as aside:
        with _explaining():
            chosen.write(agent, aside)
        write_facts(aside, agent.saved._replace(facts=facts))
        difference = compare(agent, chosen.read(aside), f"the {format} model")
        files = sorted(path.name for path in aside.iterdir())
    return Exported(folder, files, difference)


def check_place(folder: Path, force: bool) -> None:
    """RunError if something is there already, or if there is no folder to put it into."""
    try:
        if folder.name in ("", ".."):
            raise RunError(one_line(f"{folder}: give the name of a new folder"))
        if not folder.parent.is_dir():
            raise RunError(one_line(f"{folder}: there is no folder {folder.parent}; make it first"))
        if not os.path.lexists(folder):
            return
        if not force:
            what = f"{folder}: exists already; choose another --output, or add --force"
            raise RunError(one_line(what))
        if folder.is_symlink() or not _is_export(folder):
            what = f"{folder}: is not an export of evorl, which is all that --force replaces"
            raise RunError(one_line(what))
    except (OSError, ValueError) as error:
        raise RunError(one_line(f"{folder}: cannot be used: {error}")) from None


def _is_export(folder: Path) -> bool:
    try:
        return "export" in json.loads((folder / FACTS).read_bytes())["facts"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def compare(agent: Agent, model: Model, what: str) -> float:
    """The largest difference from the live agent, as a share of its largest output.

    RunError if it is more than rounding, or if the actions are not the same.
    """
    random = generator(0, "export")
    obs = random_observations(agent.saved, CHECKED, random)
    live = model_of(Decision(agent))(obs)
    worst = 0.0
    for size in (CHECKED, 1):  # any batch size will do
        shipped = model(obs[:size])
        for name, values in live.items():
            own, other = values[:size], np.asarray(shipped[name])
            if other.shape != own.shape or not np.isfinite(other).all():
                raise RunError(f"{what} gives no {name} of shape {own.shape}; nothing was written")
            if own.dtype.kind == "f":
                worst = max(worst, float(np.abs(other - own).max() / (np.abs(values).max() or 1)))
            elif (other != own).sum() > TIES * CHECKED:
                raise RunError(f"{what} differs from the live agent in {name}; nothing was written")
    if worst > ROUNDING:
        share = f"by {worst:.3g} of the largest output"
        raise RunError(f"{what} differs from the live agent {share}; nothing was written")
    return worst


def random_observations(agent: SavedAgent, count: int, random: np.random.Generator) -> Array:
    """Observations [count, …] as the environment might give them."""
    interface, spec = agent.interface, agent.spec
    dtype, shape = np.dtype(interface.dtype), (count, *interface.shape)
    if spec.one_hot:
        return (interface.observation_start + random.integers(spec.inputs, size=count)).astype(
            dtype
        )
    if dtype.kind == "f":
        return random.normal(size=shape).astype(dtype)
    highest = round(1 / spec.scale) if dtype == np.uint8 else 1 if dtype.itemsize == 1 else 100
    return random.integers(highest + 1, size=shape).astype(dtype)


# Formats


class Format(NamedTuple):
    """One way to write an agent."""

    write: Callable[[Agent, Path], None]
    read: Callable[[Path], Model]
    packages: tuple[str, ...] = ()  # beyond evorl's own


def write_safetensors(agent: Agent, folder: Path) -> None:
    """weights.safetensors; agent.json says which layers they belong to."""
    save_agent(folder, agent.saved)


def read_safetensors(folder: Path) -> Model:
    """As a saved agent, which it is."""
    return model_of(Decision(load_agent(folder)))


def write_pt2(agent: Agent, folder: Path) -> None:
    """model.pt2, for torch.export.load."""
    torch.export.save(_program(agent), folder / "model.pt2")


def read_pt2(folder: Path) -> Model:
    """By torch.export.load."""
    with _explaining():
        return model_of(torch.export.load(folder / "model.pt2").module())


def write_onnx(agent: Agent, folder: Path) -> None:
    """model.onnx, one file."""
    program = _program(agent)
    names = list(Decision(agent)(program.example_inputs[0][0]))
    torch.onnx.export(
        program,
        f=folder / "model.onnx",
        input_names=["obs"],
        output_names=names,
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def read_onnx(folder: Path) -> Model:
    """By onnxruntime."""
    runtime: Any = importlib.import_module("onnxruntime")
    path, providers = str(folder / "model.onnx"), ["CPUExecutionProvider"]
    session = runtime.InferenceSession(path, providers=providers)
    names = [output.name for output in session.get_outputs()]
    return lambda obs: dict(zip(names, session.run(names, {"obs": obs}), strict=True))


FORMATS = {
    "safetensors": Format(write_safetensors, read_safetensors),
    "pt2": Format(write_pt2, read_pt2),
    "onnx": Format(write_onnx, read_onnx, ("onnx", "onnxscript", "onnxruntime")),
}


def _program(agent: Agent) -> ExportedProgram:
    """The agent as one graph, for batches of any size."""
    obs = torch.from_numpy(random_observations(agent.saved, 2, generator(0, "export")))
    return torch.export.export(Decision(agent), (obs,), dynamic_shapes=({0: Dim.DYNAMIC},))


def model_of(module: Callable[[Tensor], dict[str, Tensor]]) -> Model:
    """A module as a function of arrays."""

    def model(obs: Array) -> dict[str, Array]:
        with torch.no_grad():
            return {name: value.numpy() for name, value in module(torch.from_numpy(obs)).items()}

    return model


def check_packages(name: str) -> None:
    """ConfigError that says what to install, if this format needs more than there is."""
    missing = [package for package in FORMATS[name].packages if not _importable(package)]
    if missing:
        raise ConfigError(
            f"--format {name}: {' and '.join(missing)} cannot be imported; in the clone:"
            f" pip install -c constraints.txt -e '.[{name}]'"
        )


def _importable(package: str) -> bool:
    try:
        importlib.import_module(package)
    except ImportError:
        return False
    return True


@contextmanager
def _explaining() -> Iterator[None]:
    """Without PyTorch's warnings and log; what it raises becomes one line."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except (EvorlError, OSError, SafetensorError):
        raise
    except Exception as error:
        first = (str(error).strip() or repr(error)).splitlines()[0]
        what = f"torch {torch.__version__} cannot export this agent: {first}"
        raise RunError(one_line(what)) from error
    finally:
        logger.setLevel(level)


@contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """A folder beside the one that is wanted, which takes its place if all goes well."""
    aside, old = (folder.with_name(f".{folder.name}.{end}-{os.getpid()}") for end in ("new", "old"))
    try:
        aside.mkdir()
        yield aside
        if folder.exists():
            folder.rename(old)
            try:
                aside.rename(folder)
            except OSError:
                old.rename(folder)
                raise
            shutil.rmtree(old, ignore_errors=True)
        else:
            aside.rename(folder)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise RunError(one_line(f"{folder}: cannot be written: {reason}")) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
