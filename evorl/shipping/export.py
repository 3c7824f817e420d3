"""Export: an agent as files that run without evorl, compared with the agent before they count.

Every format is written into a new folder beside agent.json, which says what the model reads and
gives, and is read back from its files alone.

Legend: B batch.
"""

import importlib
import logging
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.export import Dim

import evorl
from evorl.errors import ConfigError, EvorlError, RunError
from evorl.networks import NORMALIZER, NetworkSpec
from evorl.runs import Agent, SavedAgent, load_agent, save_agent, write_facts
from evorl.seeding import generator

CHECKED = 1000  # random observations
ROUNDING = 1e-4  # of the largest output; other kernels add up in another order
TIES = 0.01  # the share of observations whose actions may differ: outputs within rounding
ALLOWED = 0.5  # the share of choices that random masks allow
PACKAGES = {"onnx": ("onnx", "onnxscript", "onnxruntime")}  # beyond evorl's own, by format

Array = NDArray[Any]
# Observations [B, …], and masks [B, choices] where there are any, to actions and outputs by name.
Model = Callable[..., dict[str, Array]]


class Decision(nn.Module):
    """What a model gives: the action, and the outputs of the networks that it comes from."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self.agent = agent

    def forward(self, obs: Tensor, mask: Tensor | None = None) -> dict[str, Tensor]:
        """Actions [B, …] and outputs [B, …] for the environment's observations [B, …]."""
        action, outputs = self.agent.decide(obs, mask)
        return {"action": action, **outputs}


def export_agent(agent: Agent, format: str, folder: Path) -> tuple[list[str], float]:
    """Write the agent into a new folder, which is gone again if anything goes wrong.

    Returns the names of the files, and the largest difference of outputs, as a share of the
    largest output.
    """
    _check_packages(format)
    try:
        folder.mkdir()
    except FileExistsError:
        what = "exists already; remove it, or choose another --output"
        raise RunError(f"{folder}: {what}") from None
    except OSError as error:
        raise RunError(f"{folder}: cannot be made: {error.strerror}") from None
    facts = agent.saved.facts | {"export": {"format": format, "evorl": evorl.__version__}}
    try:
        with warnings.catch_warnings(action="ignore"):
            write_model(agent, format, folder)
            write_facts(folder, agent.saved._replace(facts=facts))
            difference = compare(agent, read_model(format, folder), f"the {format} model")
        return sorted(path.name for path in folder.iterdir()), difference
    except BaseException as error:
        shutil.rmtree(folder, ignore_errors=True)
        if isinstance(error, EvorlError) or not isinstance(error, Exception):
            raise
        first = (str(error).strip() or repr(error)).splitlines()[0]
        raise RunError(f"{folder}: cannot export this agent as {format}: {first}") from error


def _check_packages(format: str) -> None:
    for package in PACKAGES.get(format, ()):
        try:
            importlib.import_module(package)
        except ImportError:
            raise ConfigError(
                f"--format {format}: {package} cannot be imported; in the clone:"
                f" pip install -c constraints.txt -e '.[{format}]'"
            ) from None


def write_model(agent: Agent, format: str, folder: Path) -> None:
    """weights.safetensors, a model.pt2 for torch.export.load, or a model.onnx."""
    if format == "safetensors":
        save_agent(folder, agent.saved)
        return
    drawn = random_inputs(agent.saved, 2, generator(0, "export"))
    decision, inputs = Decision(agent), {name: torch.from_numpy(own) for name, own in drawn.items()}
    sizes = ({0: Dim.DYNAMIC},) * len(inputs)
    program = torch.export.export(decision, tuple(inputs.values()), dynamic_shapes=sizes)
    if format == "pt2":
        torch.export.save(program, folder / "model.pt2")
        return
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    torch.onnx.export(
        program,
        f=folder / "model.onnx",
        input_names=list(inputs),
        output_names=list(decision(**inputs)),
        dynamo=True,
        external_data=False,
        verbose=False,
    )


def read_model(format: str, folder: Path) -> Model:
    """The model from its files, as whoever gets them would read it."""
    if format == "safetensors":
        return model_of(Decision(load_agent(folder)))
    if format == "pt2":
        return model_of(torch.export.load(folder / "model.pt2").module())
    runtime: Any = importlib.import_module("onnxruntime")
    path, providers = str(folder / "model.onnx"), ["CPUExecutionProvider"]
    session = runtime.InferenceSession(path, providers=providers)
    names = [output.name for output in session.get_outputs()]
    reads = [one.name for one in session.get_inputs()]

    def model(*inputs: Array) -> dict[str, Array]:
        found = session.run(names, dict(zip(reads, inputs, strict=True)))
        return dict(zip(names, found, strict=True))

    return model


def model_of(module: Callable[..., dict[str, Tensor]]) -> Model:
    """A module as a function of arrays."""

    def model(*inputs: Array) -> dict[str, Array]:
        with torch.no_grad():
            found = module(*map(torch.from_numpy, inputs))
        return {name: value.numpy() for name, value in found.items()}

    return model


def compare(agent: Agent, model: Model, what: str) -> float:
    """The largest difference from the live agent, as a share of its largest output.

    RunError if it is more than rounding, or if the actions are not the same.
    """
    inputs = random_inputs(agent.saved, CHECKED, generator(0, "export")).values()
    live = model_of(Decision(agent))(*inputs)
    worst = 0.0
    for size in (CHECKED, 1):  # any batch size will do
        shipped = model(*(one[:size] for one in inputs))
        for name, values in live.items():
            own, other = values[:size], np.asarray(shipped[name])
            if other.shape != own.shape or not np.isfinite(other).all():
                raise RunError(f"{what} gives no {name} of shape {own.shape}; nothing was written")
            if own.dtype.kind == "f":
                worst = max(worst, float(np.abs(other - own).max() / (np.abs(values).max() or 1)))
            elif (other != own).sum() > TIES * values.size:
                raise RunError(f"{what} differs from the live agent in {name}; nothing was written")
    if worst > ROUNDING:
        share = f"by {worst:.3g} of the largest output"
        raise RunError(f"{what} differs from the live agent {share}; nothing was written")
    return worst


def random_inputs(agent: SavedAgent, count: int, random: np.random.Generator) -> dict[str, Array]:
    """What a model reads, by name: observations [count, …], and masks [count, choices] if any."""
    inputs = {"obs": random_observations(agent, count, random)}
    if agent.spec.mask:
        inputs["mask"] = random_masks(agent.spec, count, random)
    return inputs


def random_masks(spec: NetworkSpec, count: int, random: np.random.Generator) -> Array:
    """Masks [count, choices] that leave at least one choice of every part."""
    parts = []
    for size in spec.choices or (spec.mask,):
        allowed = random.random((count, size)) < ALLOWED
        allowed[np.arange(count), random.integers(size, size=count)] = True
        parts.append(allowed.astype(np.int8))  # as Gymnasium has them
    return np.concatenate(parts, 1)


def random_observations(agent: SavedAgent, count: int, random: np.random.Generator) -> Array:
    """Observations [count, …] as the environment might give them."""
    interface, spec = agent.interface, agent.spec
    dtype, shape = np.dtype(interface.dtype), (count, *interface.shape)
    if spec.one_hot:
        states = interface.observation_start + random.integers(spec.inputs, size=count)
        return states.astype(dtype)
    if spec.normalize:
        return _usual(agent, random.normal(size=(count, spec.inputs))).reshape(shape)
    if dtype.kind == "f":
        return random.normal(size=shape).astype(dtype)
    highest = round(1 / spec.scale) if dtype == np.uint8 else 1 if dtype.itemsize == 1 else 100
    return random.integers(highest + 1, size=shape).astype(dtype)


def _usual(agent: SavedAgent, normal: Array) -> Array:
    """Observations [count, inputs] such as the agent has seen, of standard normal numbers.

    Others would be clipped: a model's outputs would be those of a few corners.
    """
    dtype = np.dtype(agent.interface.dtype)
    mean, var = (
        agent.parameters[f"{NORMALIZER}.obs_{name}"].double().numpy() for name in ("mean", "var")
    )
    found: Array = (mean + np.sqrt(var) * normal) / agent.spec.scale
    if dtype.kind != "f":
        low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        found = np.rint(found).clip(low, high)
    return found.astype(dtype)
