"""The formats that an agent is exported to: each is written, read back, and used in five lines.

Every writer gets an empty folder. Every reader gives a function from observations to Q values, and
goes by the files alone.
"""

import importlib
import runpy
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save
from torch import nn

from evorl.errors import ConfigError, RunError, one_line
from evorl.shipping.interface import Array, Interface
from evorl.shipping.source import source_of

OPSET = 17  # of ONNX, the first with LayerNormalization; onnxruntime has it since 1.12

JIT: Any = torch.jit  # which has no types

Values = Callable[[Array], Array]


class Parcel(NamedTuple):
    """What is to be written."""

    module: nn.Sequential
    interface: Interface
    heading: str  # `Agent 6 of CartPole-v1, …`

    def sample(self) -> Array:
        """Two observations, for what is traced."""
        start = getattr(self.interface.space, "start", 0)
        return np.full((2, *self.interface.shape), start, self.interface.dtype)


class Format(NamedTuple):
    """One way to write an agent."""

    write: Callable[[Parcel, Path], None]
    read: Callable[[Path], Values]
    imports: str  # of example.py
    load: str
    batch: str  # its expression for a batch of one observation: {shape}, {start}, {dtype}
    values: str
    packages: tuple[str, ...] = ()  # beyond evorl's own


def write_safetensors(parcel: Parcel, folder: Path) -> None:
    """weights.safetensors, and model.py that builds the module."""
    weights = {name: value.contiguous() for name, value in parcel.module.state_dict().items()}
    (folder / "weights.safetensors").write_bytes(save(weights))
    interface = parcel.interface
    text = source_of(parcel.module, parcel.heading, interface.shape, len(interface.actions))
    (folder / "model.py").write_text(text, encoding="utf-8")


def read_safetensors(folder: Path) -> Values:
    """By running model.py, which was written just now."""
    module = runpy.run_path(str(folder / "model.py"))["load"]()
    return _values(module)


def write_torchscript(parcel: Parcel, folder: Path) -> None:
    """model.pt, for torch.jit.load in Python and C++."""
    with _quiet():
        traced = JIT.trace(parcel.module, (torch.from_numpy(parcel.sample()),))
        JIT.save(traced, str(folder / "model.pt"))


def read_torchscript(folder: Path) -> Values:
    """By torch.jit.load."""
    with _quiet():
        return _values(JIT.load(str(folder / "model.pt")))


def write_onnx(parcel: Parcel, folder: Path) -> None:
    """model.onnx, by the exporter that needs no package but onnx (the newer one: onnxscript)."""
    batch = {0: "batch"}
    with _quiet():
        torch.onnx.export(
            parcel.module,
            (torch.from_numpy(parcel.sample()),),
            str(folder / "model.onnx"),
            dynamo=False,
            opset_version=OPSET,
            input_names=["obs"],
            output_names=["q_values"],
            dynamic_axes={"obs": batch, "q_values": batch},
        )


def read_onnx(folder: Path) -> Values:
    """By onnxruntime."""
    runtime: Any = importlib.import_module("onnxruntime")
    session = runtime.InferenceSession(
        str(folder / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    return lambda obs: np.asarray(session.run(["q_values"], {"obs": obs})[0])


TENSOR = "torch.full({shape}, {start}, dtype=torch.{dtype})"
FORMATS = {
    "safetensors": Format(
        write_safetensors,
        read_safetensors,
        "import torch\nfrom model import load",
        "agent = load()",
        TENSOR,
        "agent(obs)",
    ),
    "torchscript": Format(
        write_torchscript,
        read_torchscript,
        "import torch",
        'agent = torch.jit.load("model.pt")',
        TENSOR,
        "agent(obs)",
    ),
    "onnx": Format(
        write_onnx,
        read_onnx,
        "import numpy as np\nimport onnxruntime",
        'agent = onnxruntime.InferenceSession("model.onnx")',
        'np.full({shape}, {start}, dtype="{dtype}")',
        'agent.run(None, {"obs": obs})[0]',
        ("onnx", "onnxruntime"),
    ),
}


def example_of(format: Format, parcel: Parcel) -> str:
    """example.py: the shortest way from an observation to an action, which runs as it is."""
    interface, sample = parcel.interface, parcel.sample()[:1]
    start = sample.reshape(-1)[0].item()
    batch = format.batch.format(shape=sample.shape, start=start, dtype=interface.dtype.name)
    first = interface.actions.start
    return (
        f'"""{parcel.heading} Run it in this folder."""\n\n{format.imports}\n\n'
        f"{format.load}\n"
        f"obs = {batch}  # a batch of one, as the environment gives it\n"
        f'print("action", {format.values}.argmax(1){f" + {first}" if first else ""})\n'
    )


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


def _values(module: Any) -> Values:
    def values(obs: Array) -> Array:
        with torch.no_grad():
            return np.asarray(module(torch.from_numpy(obs)))

    return values


@contextmanager
def _quiet() -> Iterator[None]:
    """Without PyTorch's advice to use its newer exporters; what they raise is one line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            yield
        except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
            first = (str(error).strip() or repr(error)).splitlines()[0]
            what = f"torch {torch.__version__} cannot write this network: {first}"
            raise RunError(one_line(what)) from error
