"""What a run would be and take: all of it is built, a few rounds are measured, and nothing stays.

Evaluation is measured on episodes that are cut: how long real ones get, only training shows. So
the figure for it is what it takes at the most.
"""

import math
import resource
import tempfile
import time
from contextlib import ExitStack
from typing import Any, NamedTuple

from evorl.config import RunConfig, TrackingConfig, parse_config
from evorl.envs import steps_limit
from evorl.evolution import Schedule, describe_architectures
from evorl.experience import ReplayBuffer
from evorl.networks import row_shapes
from evorl.pipeline import Callbacks, Task, TrainingContext, play
from evorl.population import kinds_of
from evorl.reporting import Console
from evorl.seeding import fresh
from evorl.training.actor_setup import act_as_rank, start_world
from evorl.training.build import pace_of
from evorl.training.run import Run
from evorl.training.start import make_run, start_run
from evorl.training.trainer import TRAINER, make_task

SECONDS = 2.0  # that rounds are measured at least
FEWEST = 16  # rounds between two looks at the clock
CUT = 64  # steps of an episode that is measured
UNBOUNDED = 10**12  # rounds


class GroupPlan(NamedTuple):
    """Agents that share a matrix."""

    agents: int
    networks: list[str]  # the shapes that there are among them
    parameters: int  # of the largest agent


class Plan(NamedTuple):
    """What a run would be, and take."""

    env: str
    backend: str
    num_envs: int  # of an agent
    algorithm: str
    agents: int
    compiled: bool
    groups: list[GroupPlan]
    memory: int  # bytes, of this process when its replays are full
    replays: int  # bytes of that
    ranks: int
    start: float  # seconds until the first round is over: compiling, too
    rounds: int  # that were measured
    steps_per_second: float  # of all ranks, training alone
    generations: int
    training: float  # seconds
    evaluation: float | None  # seconds at the most; None: meanwhile, or for nothing

    def to_json(self) -> dict[str, Any]:
        """For scripts."""
        return self._asdict() | {"groups": [group._asdict() for group in self.groups]}


def plan_run(config: RunConfig, schedule: Schedule | None = None) -> Plan | None:
    """Build the run in a folder that is removed, and measure it; None on all but the main rank."""
    with ExitStack() as stack:
        world = start_world(config)
        stack.callback(world.close)
        if world.acts:
            act_as_rank(_measured(config, ""), world)
            return None
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="evorl-"))
        began, console = time.perf_counter(), Console(quiet=True)
        run = make_run(_measured(config, folder), world, stack, console, schedule)
        context = TrainingContext(run.parts.population.size)
        hooks = Callbacks((), run.storage.directory.path)
        _, save = make_task(run, context, world.labels, hooks, schedule)
        start_run(run, context, save)
        context.ends = UNBOUNDED  # no generation ends
        task = Task(context, world.labels)
        for stage in (run.stages.anneal, run.stages.collect, run.stages.learn):
            task.use(stage, filter_labels=TRAINER)
        whole = 1 if config.has_actors else getattr(config.algorithm, "rollout_steps", 1)
        at_once = max(FEWEST, whole)  # rounds: updates follow a whole rollout, or a message
        task.run(max_step=at_once)
        start, rounds, steps, spent = time.perf_counter() - began, 0, context.env_steps, 0.0
        while world.broadcast_json(spent < SECONDS):
            began = time.perf_counter()
            task.run(max_step=at_once)
            spent, rounds = spent + time.perf_counter() - began, rounds + at_once
        made = (context.env_steps - steps) * world.mesh.trainers
        if run.parts.exchange is not None:
            run.parts.exchange.close()
        if not world.main:
            return None
        return _plan(config, run, start, rounds, made / spent)


def _measured(config: RunConfig, folder: str) -> RunConfig:
    """The same run, but that it learns from the start, elsewhere, and that nobody hears of it."""
    early = ["algorithm.learning_starts=0"] if hasattr(config.algorithm, "learning_starts") else []
    run = config.run.model_copy(update={"folder": folder})
    changed = parse_config(config.model_dump(), early)
    return changed.model_copy(update={"run": run, "tracking": TrackingConfig()})


def _plan(config: RunConfig, run: Run, start: float, rounds: int, speed: float) -> Plan:
    parts, world, population = run.parts, run.world, run.parts.population
    pace, env_steps = pace_of(config, world), config.budget.env_steps
    generations = math.ceil(env_steps / (pace.iterations * pace.steps))
    buffer, replays = parts.sampler.buffer, 0
    if isinstance(buffer, ReplayBuffer):
        replays = buffer.num_replays * buffer.capacity * buffer.item_bytes
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return Plan(
        env=config.env.id,
        backend=run.parts.spec.backend,
        num_envs=config.env.num_envs,
        algorithm=config.algorithm.name,
        agents=config.population.size,
        compiled=population.compiled is not None,
        groups=_groups(run),
        memory=used + replays,
        replays=replays,
        ranks=world.size,
        start=start,
        rounds=rounds,
        steps_per_second=speed,
        generations=generations,
        training=env_steps / speed,
        evaluation=_evaluation(run, config, generations) if _evaluates(config) else None,
    )


def _groups(run: Run) -> list[GroupPlan]:
    """All agents by the matrix that they are in, as the run begins."""
    parts, specs = run.parts, run.parts.population.specs
    kinds = kinds_of(specs, parts.genomes, parts.population.compiled is not None)
    found = []
    for kind in dict.fromkeys(kinds):
        own = [genome for genome, its in zip(parts.genomes, kinds, strict=True) if its == kind]
        sizes = [row_shapes(specs, genome.architectures).values() for genome in own]
        most = max(sum(map(math.prod, shapes)) for shapes in sizes)
        found.append(GroupPlan(len(own), sorted(set(map(describe_architectures, own))), most))
    return found


def _evaluates(config: RunConfig) -> bool:
    """Whether those who train stop for it."""
    return config.evaluation.source == "episodes" and not config.mesh.evaluators


def _evaluation(run: Run, config: RunConfig, generations: int) -> float:
    """Seconds, if all episodes of all agents were as long as they may be."""
    parts, world, evaluation = run.parts, run.world, config.evaluation
    seeds = fresh(config.seed, evaluation.episodes, ())
    began = time.perf_counter()
    played = play(parts.population, parts.episodes, seeds, CUT)
    speed = played.steps / (time.perf_counter() - began)
    fitness, final = (
        steps_limit(given, parts.episodes.max_episode_steps)
        for given in (evaluation.max_steps, evaluation.final_max_steps)
    )
    each = len(parts.own) * evaluation.episodes / world.data
    each += evaluation.confirm_episodes / world.evaluators.size
    return (generations * each * fitness + evaluation.final_episodes * final) / speed
