"""How good an agent is: its returns on episodes that nothing saw before, with their uncertainty."""

import platform
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
import torch

import evorl
from evorl.algorithms import Trained
from evorl.config import RunConfig
from evorl.envs import EnvSpec, make_episodes, slots_for, steps_limit
from evorl.errors import RunError, WriteError
from evorl.pipeline import Played, TrainingContext, count_failures, play
from evorl.population import Population
from evorl.reporting import Console
from evorl.runs import (
    BEST,
    Estimate,
    Floats,
    SavedAgent,
    interquartile_mean,
    interval,
    load_algorithm,
    save_agent,
)
from evorl.seeding import generator, held_out
from evorl.training.run import Run


class Score(NamedTuple):
    """Returns of held-out episodes, summed up."""

    mean: Estimate
    iqm: Estimate  # mean of the middle half: outliers on either side don't move it
    episodes: int
    steps: int  # environment steps that it took
    failures: int = 0  # exceptions of environments

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        figures = {"mean": self.mean._asdict(), "iqm": self.iqm._asdict()}
        return figures | {"episodes": self.episodes}


def score_run(run: Run, context: TrainingContext) -> Score:
    """The held-out score of the agent that a run returns; with summary.json it is finished."""
    best = run.stages.champion.saved_agent()
    score = held_out_score(best, run.parts.spec, run.config, run.console)
    seconds, config, counted = time.perf_counter() - context.began, run.config, context.snapshot
    facts = {
        "name": config.name,
        "env": config.env.id,
        "seed": config.seed,
        "score": score.to_json(),
        "best": {
            **best.facts,
            "architectures": best.genome.to_json()["architectures"],
            "hyperparameters": dict(best.genome.hyperparameters),
        },
        "env_steps": counted.env_steps,
        "evaluation_steps": counted.evaluation_steps,
        "final_steps": score.steps,
        "total_steps": counted.env_steps + counted.evaluation_steps + score.steps,
        "updates": counted.updates,
        "failures": counted.failures + score.failures,
        "seconds": round(seconds, 3),
        "steps_per_second": round(counted.env_steps / seconds, 1),
        "versions": {
            "evorl": evorl.__version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "gymnasium": gymnasium.__version__,
        },
    }
    try:
        run.storage.directory.write_summary(facts)
    except WriteError as error:
        _say_with(error, score, run)
        raise
    run.stages.tracking.end(facts)
    if run.parts.episodes.max_episode_steps is None:
        warn_of_share(run, counted.evaluation_steps + score.steps, counted.env_steps)
    return score


def warn_of_share(run: Run, evaluation: int, training: int) -> None:
    """Without a limit of steps evaluation may take more of them than training does."""
    if evaluation > training:
        total = evaluation + training
        run.console.warn(
            f"evaluation took {100 * evaluation / total:.0f} % of all {total:,} environment steps:"
            f" {run.config.env.id!r} has no limit of steps; give it one (max_episode_steps), or"
            " lower evaluation.max_steps, final_max_steps and episodes"
        )


@contextmanager
def scoring_all_the_same(run: Run, context: TrainingContext) -> Iterator[None]:
    """If the disk is full in the last generation, what it has reached is said with the error."""
    try:
        yield
    except WriteError as error:
        snapshot, budget = context.snapshot, run.config.budget
        spent = budget.spent(snapshot.env_steps, snapshot.evaluation_steps)
        ended = snapshot.last or snapshot.finished or spent >= budget.env_steps
        if ended and run.world.main and not run.world.lag:
            best = run.stages.champion.saved_agent()
            score = held_out_score(best, run.parts.spec, run.config, run.console)
            _say_with(error, score, run)
        raise


def _say_with(error: WriteError, score: Score, run: Run) -> None:
    """The score, and where the best agent is: in the run, or wherever there is room."""
    error.add_note(f"held-out score: mean {score.mean}, IQM {score.iqm}")
    folder = run.storage.directory.path / BEST
    try:
        if not run.stages.champion.saved:
            folder = Path(tempfile.mkdtemp(prefix="evorl-best-"))
            save_agent(folder, run.stages.champion.saved_agent())
    except OSError as problem:
        error.add_note(f"the best agent is lost: {folder}: {problem.strerror}")
    else:
        error.add_note(f"best agent: {folder}")


def held_out_score(agent: SavedAgent, spec: EnvSpec, config: RunConfig, console: Console) -> Score:
    """Play the agent on seeds that training and selection never used."""
    seeds = held_out(config.seed, config.evaluation.final_episodes)
    played, failures = play_alone(agent, spec, seeds, config.evaluation.final_max_steps, console)
    score = estimate(played.returns[0], generator(config.seed, "bootstrap"), played.steps)
    return score._replace(failures=failures)


def play_alone(
    agent: SavedAgent,
    spec: EnvSpec,
    seeds: Sequence[int],
    max_steps: int | Literal["auto"],
    console: Console,
) -> tuple[Played, int]:
    """One agent plays an episode per seed, with a bar; also the failures of environments."""
    population = alone(agent)
    episodes = make_episodes(spec, slots_for(spec, len(seeds)))
    console.start(len(seeds), "scoring", "episode")
    try:
        limit = steps_limit(max_steps, episodes.max_episode_steps)
        played = play(population, episodes, seeds, limit, console.advance)
        counted = TrainingContext(1, evaluation_steps=played.steps)
        count_failures(counted, episodes.failures)  # as many are allowed as in the run before
        if count := counted.failures:
            warnings.warn(
                f"held-out score: {count} failure{'s' * (count != 1)} of environments; an episode"
                " that broke off counts with what it had returned until then",
                stacklevel=3,
            )
        return played, count
    finally:
        episodes.close()
        console.close()


def alone(agent: SavedAgent) -> Population:
    """A population of this one agent, to play or to ask for values."""
    networks = {name: Trained(spec) for name, spec in agent.specs.items()}
    algorithm = load_algorithm(agent.algorithm)
    if lacking := algorithm.hyperparameters.keys() - agent.genome.hyperparameters.keys():
        what = f"has no {min(lacking)}, a hyperparameter of {algorithm.name}"
        raise RunError(f"agent {agent.genome.id} {what}; it is of another version")
    return Population.of_one(agent.genome, agent.parameters, networks, algorithm)


def estimate(returns: Floats, random: np.random.Generator, steps: int = 0) -> Score:
    """Mean and interquartile mean of episode returns [E], with their intervals."""
    return Score(
        mean=interval([returns], random, np.mean),
        iqm=interval([returns], random, interquartile_mean),
        episodes=len(returns),
        steps=steps,
    )
