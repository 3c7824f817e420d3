"""Export: an agent as files that run without evorl, checked against the agent before it counts."""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError

import evorl
from evorl.errors import RunError, one_line
from evorl.seeding import generator
from evorl.shipping.formats import FORMATS, Parcel, check_packages, example_of
from evorl.shipping.interface import Array, random_observations
from evorl.shipping.module import whole_module
from evorl.shipping.pick import Picked
from evorl.training.score import alone

FACTS = "model.json"
CHECKED = 1000  # random observations
ROUNDING = 1e-4  # of the largest Q value; other kernels add up in another order


class Exported(NamedTuple):
    """What was written, and how near it is to the agent."""

    folder: Path
    files: list[str]
    difference: float  # largest of all Q values, as a share of the largest Q value


def export(picked: Picked, format: str, folder: Path, *, force: bool = False) -> Exported:
    """Write the agent into a new folder; nothing is changed if anything goes wrong."""
    check_packages(format)
    check_place(folder, force)
    chosen, parcel = FORMATS[format], _parcel(picked)
    with _aside(folder) as aside:
        chosen.write(parcel, aside)
        (aside / "example.py").write_text(example_of(chosen, parcel), encoding="utf-8")
        facts = json.dumps(_facts(picked, format), indent=2, allow_nan=False)
        (aside / FACTS).write_text(facts + "\n", encoding="utf-8")
        difference = compare(picked, chosen.read(aside), f"the {format} model")
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
            raise RunError(
                one_line(f"{folder}: exists already; choose another --output, or add --force")
            )
        if folder.is_symlink() or not (folder / FACTS).is_file():
            raise RunError(
                one_line(f"{folder}: is no export of evorl, which is all that --force replaces")
            )
    except (OSError, ValueError) as error:
        raise RunError(one_line(f"{folder}: cannot be used: {error}")) from None


def compare(picked: Picked, values: Any, what: str) -> float:
    """The largest difference from the live agent, as a share of its largest Q value.

    RunError if it is more than rounding. The live agent is its row in a population's matrix, behind
    the adapter that training and evaluation use.
    """
    interface = picked.interface
    random = generator(picked.config.seed, "export")
    obs = random_observations(interface.space, CHECKED, random)
    live = live_values(picked, obs)
    largest = float(np.abs(live).max())
    worst = 0.0
    for batch, own in ((obs, live), (obs[:1], live[:1])):  # any batch size will do
        shipped = np.asarray(values(batch))
        if shipped.shape != own.shape or not np.isfinite(shipped).all():
            raise RunError(f"{what} gives no Q values of shape {own.shape}; nothing was written")
        worst = max(worst, float(np.abs(shipped - own).max()))
    if worst > ROUNDING * largest:
        raise RunError(
            f"{what} differs from the live agent by {worst:.3g}, with Q values up to {largest:.3g};"
            " nothing was written"
        )
    return worst / largest if largest else 0.0


@torch.no_grad()
def live_values(picked: Picked, obs: Array) -> Array:
    """Q values [B, A] of the agent as it trains and plays, for the environment's observations."""
    own = torch.from_numpy(picked.interface.adapter.observations(obs))
    (group,) = alone(picked.agent).groups
    return group.values(own.unsqueeze(0))[0].T.numpy()


def _parcel(picked: Picked) -> Parcel:
    env = re.sub(r"[^\w:./-]", "?", picked.config.env.id)  # it ends up in a Python file
    heading = f"Agent {picked.agent.genome.id} of {env}, exported by evorl {evorl.__version__}."
    return Parcel(whole_module(picked.agent, picked.interface), picked.interface, heading)


def _facts(picked: Picked, format: str) -> dict[str, Any]:
    interface, agent = picked.interface, picked.agent
    env = picked.config.env.model_dump(mode="json", include={"id", "kwargs", "wrappers"})
    return {
        "evorl": evorl.__version__,
        "format": format,
        "run": picked.config.name,
        "env": env,
        "agent": agent.genome.to_json(),
        "facts": agent.facts,
        "observations": {"shape": [None, *interface.shape], "dtype": interface.dtype.name},
        "actions": {"count": len(interface.actions), "first": interface.actions.start},
    }


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
