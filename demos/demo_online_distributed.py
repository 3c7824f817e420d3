"""A population evolves on LunarLander over several processes, with the loop in your own hands.

    accelerate launch --config_file configs/accelerate/cpu.yaml demos/demo_online_distributed.py

Every rank trains its own agents in its own environments, from its own replay. At a generation's end
all meet: the main rank selects, mutates and writes a checkpoint, and every rank takes over its part
of the new population. `python demos/demo_online_distributed.py` does the same in one process.
Arguments override the configuration: budget.env_steps=50000
"""

import sys
from contextlib import ExitStack

from evorl.cli.errors import one_line_errors
from evorl.config import RunConfig, dump_config, parse_config
from evorl.distributed.disk import is_shared
from evorl.distributed.world import World
from evorl.evolution.lineage import birth
from evorl.pipeline.context import Context
from evorl.pipeline.save import Save
from evorl.reporting.console import Console
from evorl.runs.directory import RunDirectory
from evorl.runs.resume import make_checkpoints
from evorl.training.office import Begin, make_office
from evorl.training.rank import make_rank
from evorl.training.score import score_run
from evorl.training.signals import ending_on_signals
from evorl.training.trainer import choose_environments

CONFIG = {
    "name": "lunar_lander_distributed",
    "env": {"id": "LunarLander-v3", "num_envs": 8, "backend": "sync"},  # of each agent
    "algorithm": {"lr": 5e-4, "gamma": 0.99, "tau": 0.005, "n_step": 3, "learn_step": 2},
    "network": {"hidden": [128, 128], "activation": "relu"},
    "population": {"size": 4},
    "evaluation": {"every": 1000, "episodes": 5, "confirm_episodes": 100},
    "evolution": {"mutation": {"hyperparameters": 0.6, "architecture": 0.2, "parameters": 0.2}},
    "budget": {"env_steps": 1_000_000, "stop_at": 235},  # of all ranks together; or a score
    "compile": False,
    "run": {"if_exists": "number"},
}


def train(config: RunConfig, world: World, stack: ExitStack) -> None:
    """The loop; all ranks run it, and enter everything that involves the others together."""
    console = Console(quiet=not world.main)  # only the main rank speaks

    # What every rank has: environments, its own agents and their replay, and the stages on them.
    spec, _ = choose_environments(config, world)
    rank = make_rank(config, world, spec, stack)

    # What only the main rank has: the run's folder, and everything that decides.
    office = checkpoints = folder = None
    if world.main:
        directory = RunDirectory.create(config.run.folder, config.name, config.run.if_exists)
        stack.enter_context(directory.locked())  # nobody else writes there
        directory.append_lineage([birth(g, i, None) for i, g in enumerate(rank.everybody.genomes)])
        directory.write_config(dump_config(config))
        office = make_office(config, directory, rank.everybody, rank.episodes, console, world.data)
        stack.callback(office.tracking.close)  # W&B and TensorBoard, if `tracking` asks for them
        checkpoints, folder = make_checkpoints(config, directory), directory.path
    progress = office.progress if office else None
    shared = is_shared(world, folder, config.checkpoint.shared_filesystem)
    save = Save(world, config.checkpoint, checkpoints, rank.replays, progress, shared=shared)

    context = Context(config.population.size)
    console.start(config.budget.env_steps, "training", "step")
    Begin(world, config, office, rank.everybody).anew(context)
    rank.spread(context)
    while not context.finished:
        rank.gather.begin(context)  # a generation; it is equally long on all ranks
        while context.iteration < context.ends:
            rank.anneal(context)  # only prioritised replay knows it
            rank.collect(context)  # one step of every environment
            rank.learn(context)  # the updates that these steps call for
            context.iteration += 1
            if office:
                office.budget.tick(context)  # the bar
        rank.evaluate(context)  # all agents on the same seeded episodes
        rank.gather(context)  # weights, moments and fitness of all ranks reach the main one
        if office:
            office.decide(context)  # hall of fame, metrics, a table, selection and mutation
        rank.turn(context)  # running episodes are cut
        rank.inherit(context)  # children take over their parents' replays
        save(context)
        rank.spread(context)  # every rank takes its part of the new population, and proves it

    if office:
        score = score_run(config, office, spec, context, console)
        print(f"held-out score over {score.episodes} episodes: {score.mean.value:.1f}")
        print(f"run: {office.directory.path}")


if __name__ == "__main__":
    with one_line_errors(), ExitStack() as stack, ending_on_signals():
        config = parse_config(CONFIG, sys.argv[1:], source="demo")
        world = World.start(config.population.size, **dict(config.mesh))
        stack.callback(world.close)
        train(config, world, stack)
