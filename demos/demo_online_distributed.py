"""A population evolves on LunarLander over several processes, with the loop in your own hands.

    accelerate launch --config_file configs/accelerate/cpu.yaml demos/demo_online_distributed.py

Every rank trains its own agents in its own environments, from its own replay. At a generation's end
all meet: the main rank selects, mutates and writes a checkpoint, and every rank takes over its part
of the new population. `python demos/demo_online_distributed.py` does the same in one process.
Arguments override the configuration: budget.env_steps=50000
"""

import sys
from contextlib import ExitStack

from evorl.config import dump_config, parse_config
from evorl.console import Console, ranking
from evorl.distributed.world import World
from evorl.envs import EnvSpec
from evorl.evolution.lineage import birth
from evorl.office import Begin, make_checkpoints, make_office
from evorl.pipeline.context import Context
from evorl.pipeline.evaluate import standard_errors
from evorl.pipeline.save import Save
from evorl.rank import make_rank
from evorl.run_directory import RunDirectory
from evorl.score import held_out_score
from evorl.signals import ending_on_signals

CONFIG = {
    "name": "lunar_lander_distributed",
    "env": {"id": "LunarLander-v3", "num_envs": 8},  # environments of each agent
    "algorithm": {"lr": 1e-3, "gamma": 0.99, "tau": 0.01, "n_step": 3, "learn_step": 2},
    "network": {"hidden": [64, 64], "activation": "relu"},
    "population": {"size": 4},
    "evaluation": {"every": 1000, "episodes": 5, "confirm_episodes": 20},
    "evolution": {"mutation": {"hyperparameters": 0.6, "architecture": 0.2, "parameters": 0.2}},
    "budget": {"env_steps": 1_000_000, "stop_at": 235},  # of all ranks together; or a score
    "compile": False,
    "run": {"if_exists": "number"},
}


def train(overrides: list[str], world: World, stack: ExitStack) -> None:
    """The loop; all ranks run it, and enter everything that involves the others together."""
    config = parse_config(CONFIG, overrides, source="demo")
    console = Console(quiet=not world.main)  # only the main rank speaks

    # What every rank has: environments, its own agents and their replay, and the stages on them.
    spec = EnvSpec(config.env.id, "sync")
    rank = make_rank(config, world, spec, stack)

    # What only the main rank has: the run's folder, and everything that decides.
    office = checkpoints = None
    if world.main:
        directory = RunDirectory.create(config.run.folder, config.name, config.run.if_exists)
        directory.write_config(dump_config(config))
        directory.append_lineage([birth(g, i, None) for i, g in enumerate(rank.everybody.genomes)])
        office = make_office(config, directory, rank.everybody, rank.episodes, console)
        stack.callback(office.tracking.close)  # W&B and TensorBoard, if `tracking` asks for them
        checkpoints = make_checkpoints(config, directory)
    progress = office.progress if office else None
    save = Save(world, config.checkpoint, checkpoints, rank.replays, progress, shared=True)

    context = Context(config.population.size)
    console.start(config.budget.env_steps, "training", "step")
    Begin(world, config, office, rank.everybody).anew(context)
    rank.spread(context)
    while not context.finished:
        rank.gather.begin(context)  # a generation; it is equally long on all ranks
        while context.iteration < context.ends:
            rank.collect(context)  # one step of every environment
            rank.learn(context)  # the updates that these steps call for
            context.iteration += 1
            if office:
                office.budget.tick(context)  # the bar
        rank.evaluate(context)  # all agents on the same seeded episodes
        rank.gather(context)  # weights, moments and fitness of all ranks reach the main one
        if office:
            errors = standard_errors(context.returns)
            table = ranking(rank.everybody.genomes, context.fitness, errors)
            office.decide(context)  # hall of fame, metrics, selection and mutation
            console.say("\n".join(table))
        rank.turn(context)  # running episodes are cut
        rank.inherit(context)  # children take over their parents' replays
        save(context)
        rank.spread(context)  # every rank takes its part of the new population, and proves it

    if office:
        score = held_out_score(office.hall.best, spec, config, console)
        print(f"held-out score over {score.episodes} episodes: {score.mean.value:.1f}")
        print(f"run: {office.directory.path}")


if __name__ == "__main__":
    with ExitStack() as stack, ending_on_signals():
        world = World.start(agents=CONFIG["population"]["size"])
        stack.callback(world.close)
        train(sys.argv[1:], world, stack)
