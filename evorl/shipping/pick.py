"""Which agent of a run: the best one, or one of the newest checkpoint by its id.

Reads only, and works while the run goes on: what its writer has just taken away is read again.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from evorl.config import RunConfig
from evorl.config.yaml_text import one_line
from evorl.envs import EnvSpec
from evorl.errors import CheckpointError, RunError
from evorl.genome import Genome
from evorl.networks.layout import Parameters, Problem, shapes
from evorl.pipeline.snapshot import POPULATION, Snapshot
from evorl.runs.checkpoint import Checkpoint
from evorl.runs.directory import BEST, LOCK, RunDirectory
from evorl.runs.resume import make_checkpoints
from evorl.runs.saved_agent import SavedAgent
from evorl.seeding import held_out
from evorl.shipping.interface import Interface, interface_of
from evorl.training.build import env_spec

TRIES, WAIT = 10, 0.2  # how often, and after how many seconds, to read again

T = TypeVar("T")


class NoSuchAgentError(RunError):
    """The agent that was asked for is not there, or dead: reading again would not help."""


class Picked(NamedTuple):
    """An agent, and what it takes to let it play."""

    path: Path  # of the run
    config: RunConfig
    spec: EnvSpec
    interface: Interface
    agent: SavedAgent
    title: str  # such as `agent 6, the best, as of generation 9`


class Found(NamedTuple):
    """An agent as it was read."""

    genome: Genome
    parameters: Parameters
    facts: dict[str, Any]
    problem: Problem | None  # that it was made for; checkpoints don't say
    title: str


def pick(run: str | Path, id: int | None = None) -> Picked:
    """The run's best agent, or the agent of this id; an error of one line if there is none."""
    directory = RunDirectory.open(run)
    config = directory.config()
    found = _patiently(directory, lambda: _find(directory, config, id))
    spec = env_spec(config)
    interface = interface_of(spec)
    if wrong := _mismatch(found, interface.problem):
        raise RunError(one_line(f"{directory.path}: agent {found.genome.id}: {wrong}"))
    agent = SavedAgent(found.genome, interface.problem, found.parameters, found.facts)
    return Picked(directory.path, config, spec, interface, agent, found.title)


def heading(picked: Picked) -> str:
    """Who was picked, in one line."""
    return one_line(f"{picked.path}: {picked.config.env.id}, {picked.title}")


def used_seeds(config: RunConfig) -> set[int]:
    """The held-out seeds of a run; those of its training and selection are of another range."""
    return set(held_out(config.seed, config.evaluation.final_episodes))


def _find(directory: RunDirectory, config: RunConfig, id: int | None) -> Found:
    if id is None:
        return _best(directory)
    checkpoint = make_checkpoints(config, directory, directory.schedule()).newest([POPULATION])
    agents = _agents(checkpoint) if checkpoint else Snapshot([], [], [])
    ids = [genome.id for genome in agents.genomes]
    if id not in ids:
        return _best_if_asked(directory, id, ids)
    assert checkpoint is not None
    place = ids.index(id)
    if not agents.alive[place]:
        raise NoSuchAgentError(one_line(f"{directory.path}: agent {id} is dead; choose another"))
    facts = {"env": config.env.id, "place": place, "checkpoint": checkpoint.path.name}
    title = f"agent {id}, as of checkpoint {checkpoint.path.name}"
    return Found(agents.genomes[place], agents.states[place].online, facts, None, title)


def _agents(checkpoint: Checkpoint) -> Snapshot:
    try:
        return Snapshot.read(checkpoint)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{checkpoint.path}: its agents are not of this version: {error!r}"
        raise CheckpointError(one_line(what)) from None


def _best(directory: RunDirectory) -> Found:
    place = directory.path / BEST
    before = _identity(place)
    agent = directory.best()
    if _identity(place) != before:  # one file of the old, one of the new
        raise RunError(one_line(f"{place}: is being replaced just now; try again"))
    known = agent.facts.get("generation")
    when = "" if known is None else f", as of generation {known}"
    title = f"agent {agent.genome.id}, the best{when}"
    return Found(agent.genome, agent.parameters, agent.facts, agent.problem, title)


def _best_if_asked(directory: RunDirectory, id: int, ids: list[int]) -> Found:
    """The best, if it is asked for by its id; what there is to choose from, if not."""
    choice = [f"its newest checkpoint has {', '.join(map(str, sorted(ids)))}"] if ids else []
    if (directory.path / BEST).exists():
        best = _best(directory)
        if best.genome.id == id:
            return best
        choice.append(f"its best is {best.genome.id}")
    what = f"{directory.path}: no agent {id}; "
    if not choice:
        raise RunError(one_line(f"{what}it has neither a checkpoint nor a best agent yet"))
    raise NoSuchAgentError(one_line(what + "; ".join(choice)))


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns


def _mismatch(found: Found, problem: Problem) -> str | None:
    """Why an agent cannot play in an environment that is this problem; None if it can."""
    other = "the environment's observations or actions are not those that it was trained with"
    if found.problem not in (None, problem):
        return other
    try:
        expected = shapes(problem, found.genome.architecture)
    except ValueError:
        return other
    if {name: tuple(value.shape) for name, value in found.parameters.items()} != expected:
        return other
    if not all(bool(value.isfinite().all()) for value in found.parameters.values()):
        return "its weights are not finite"
    return None


def _patiently(directory: RunDirectory, read: Callable[[], T]) -> T:
    """Read again while a run is going on: its writer may have removed what was being read."""
    for _ in range(TRIES - 1):
        try:
            return read()
        except NoSuchAgentError:
            raise
        except (RunError, CheckpointError):
            if not (directory.path / LOCK).exists():
                raise
        time.sleep(WAIT)
    return read()
