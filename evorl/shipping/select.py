"""Which agent of a run: the best one, or one of the newest checkpoint by its id.

This only reads, and it works while the run trains: what the run has just replaced is read again.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

from evorl.config import RunConfig
from evorl.envs import EnvSpec, SpaceAdapter, spaces_of
from evorl.errors import CheckpointError, RunError, one_line
from evorl.networks import Spec
from evorl.pipeline import POPULATION, Snapshot
from evorl.runs import BEST, LOCK, Checkpoint, Interface, RunDirectory, SavedAgent, make_checkpoints
from evorl.seeding import held_out
from evorl.training import env_spec, make_algorithm, make_networks

TRIES, WAIT = 10, 0.2  # how often, and after how many seconds, to read again
CHANGED = "the environment's observations or actions are not those that it was trained with"

T = TypeVar("T")


class NoSuchAgentError(RunError):
    """The agent that was asked for does not exist or is dead: reading again would not help."""


class Selected(NamedTuple):
    """An agent of a run, and where it plays."""

    path: Path  # of the run
    config: RunConfig
    spec: EnvSpec
    agent: SavedAgent
    title: str  # such as `agent 6, the best, as of generation 9`

    @property
    def heading(self) -> str:
        """What was selected, in one line."""
        return one_line(f"{self.path}: {self.config.env.id}, {self.title}")

    @property
    def used_seeds(self) -> set[int]:
        """The run's held-out seeds; those of training and selection are of another range."""
        return set(held_out(self.config.seed, self.config.evaluation.final_episodes))


def select_agent(run: str | Path, id: int | None = None) -> Selected:
    """The run's best agent, or the agent of this id; an error of one line if there is none."""
    directory = RunDirectory.open(run)
    config = directory.config()
    spec = env_spec(config)
    spaces = spaces_of(spec)
    agent, title = _patiently(directory, lambda: _find(directory, config, spaces, id))
    if wrong := _mismatch(agent, config, spaces):
        raise RunError(one_line(f"{directory.path}: agent {agent.genome.id}: {wrong}"))
    return Selected(directory.path, config, spec, agent, title)


def _find(
    directory: RunDirectory, config: RunConfig, spaces: SpaceAdapter, id: int | None
) -> tuple[SavedAgent, str]:
    """The agent and its title."""
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
    agent = SavedAgent(
        agents.genomes[place],
        _specs(config, spaces),
        agents.states[place].online,
        make_algorithm(config).model_dump(mode="json"),
        Interface.of(spaces),
        {"env": config.env.id, "place": place, "checkpoint": checkpoint.path.name},
    )
    return agent, f"agent {id}, as of checkpoint {checkpoint.path.name}"


def _agents(checkpoint: Checkpoint) -> Snapshot:
    try:
        return Snapshot.read(checkpoint)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"{checkpoint.path}: its agents are not of this version: {error!r}"
        raise CheckpointError(one_line(what)) from None


def _best(directory: RunDirectory) -> tuple[SavedAgent, str]:
    place = directory.path / BEST
    before = _identity(place)
    agent = directory.best()
    if _identity(place) != before:  # one file of the old, one of the new
        raise RunError(one_line(f"{place}: is being replaced just now; try again"))
    known = agent.facts.get("generation")
    when = "" if known is None else f", as of generation {known}"
    return agent, f"agent {agent.genome.id}, the best{when}"


def _best_if_asked(directory: RunDirectory, id: int, ids: list[int]) -> tuple[SavedAgent, str]:
    """The best, if that is the id; otherwise an error that lists the ids there are."""
    choice = [f"its newest checkpoint has {', '.join(map(str, sorted(ids)))}"] if ids else []
    if (directory.path / BEST).exists():
        best = _best(directory)
        if best[0].genome.id == id:
            return best
        choice.append(f"its best is {best[0].genome.id}")
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


def _specs(config: RunConfig, spaces: SpaceAdapter) -> dict[str, Spec]:
    """What the run's networks read and give, in an environment with these spaces."""
    action = spaces.action
    networks = make_networks(config, spaces.observation, action)
    return {name: own.spec for name, own in networks.items()}


def _mismatch(agent: SavedAgent, config: RunConfig, spaces: SpaceAdapter) -> str | None:
    """Why the agent cannot play in an environment with these spaces; None if it can."""
    if (agent.specs, agent.interface) != (_specs(config, spaces), Interface.of(spaces)):
        return CHANGED
    try:
        agent.check()
    except ValueError as error:
        return str(error)
    return None


def _patiently(directory: RunDirectory, read: Callable[[], T]) -> T:
    """Read again while the run trains: it may have removed what was being read."""
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
