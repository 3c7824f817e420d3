"""A population evolves on LunarLander over several processes, with the loop in your own hands.

    accelerate launch --config_file configs/accelerate/cpu.yaml demos/demo_online_distributed.py

Every rank trains its own agents in its own environments, from its own replay. At a generation's end
all meet: the main rank selects, mutates and writes a checkpoint, and every rank takes over its part
of the new population. `python demos/demo_online_distributed.py` does the same in one process.
Arguments override the configuration: budget.env_steps=50000
"""

import sys
from contextlib import ExitStack

import evorl

CONFIG = {
    "name": "lunar_lander_distributed",
    "env": {"id": "LunarLander-v3", "num_envs": 8, "backend": "sync"},  # of each agent
    "algorithm": {"lr": 5e-4, "gamma": 0.99, "tau": 0.005, "n_step": 3, "learn_step": 2},
    "network": {"hidden": [128, 128], "activation": "relu"},
    "population": {"size": 4},
    "evaluation": {"every": 1000, "source": "training", "confirm_episodes": 100},
    "evolution": {"mutation": {"hyperparameters": 0.6, "architecture": 0.2, "parameters": 0.2}},
    "budget": {"env_steps": 1_000_000, "stop_at": 235},  # of all ranks together; or a score
    "compile": False,
    "run": {"if_exists": "number"},
}


def train(config: evorl.RunConfig, world: evorl.World, stack: ExitStack) -> None:
    """The loop; all ranks run it, and enter everything that involves the others together."""
    run = evorl.make_run(config, world, stack, evorl.Console())  # only the main rank speaks
    stages, context = run.stages, evorl.TrainingContext(run.parts.population.size)
    stateful = [stages.champion, stages.evolve]  # what a checkpoint keeps besides the agents
    save = evorl.Save(world, run.config, run.storage, run.parts.replays, stateful)
    evorl.start_run(run, context, save)

    while not context.finished:
        while context.iteration < context.ends:  # a generation; equally long on all ranks
            stages.collect(context)  # one step of every environment
            stages.learn(context)  # the updates that these steps call for
            context.iteration += 1
        stages.evaluate(context)  # fitness: the returns of the episodes that ended
        stages.gather(context)  # weights, moments and fitness of all ranks, as one snapshot
        stages.champion(context)  # whether the best of them is the best so far, on further episodes
        if world.main:
            stages.budget(context)  # how long the next generation is, if there is one
            stages.record.evaluation(context)  # metrics.jsonl and lineage.jsonl
            stages.show.evaluation(context)  # a table
            stages.refuse_all_dead(context)
            stages.evolve(context)  # selection and mutation
            stages.record.births(context)
        stages.end_episodes(context)
        stages.inherit(context)  # children take over their parents' replays
        save(context)  # a checkpoint
        stages.broadcast(context)  # every rank takes its part of the snapshot, and proves it

    evorl.evaluate_last(run, context)  # evaluators, if there are any, are a generation behind
    if world.main:
        score = evorl.score_run(run, context)
        print(f"held-out score over {score.episodes} episodes: {score.mean}")
        print(f"run: {run.storage.directory.path}")


if __name__ == "__main__":
    with evorl.one_line_errors(), ExitStack() as stack, evorl.ending_on_signals():
        config = evorl.parse_config(CONFIG, sys.argv[1:], source="demo")
        world = evorl.World.start(config.population.size, **dict(config.mesh))
        stack.callback(world.close)
        train(config, world, stack)
