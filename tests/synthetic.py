"""Run directories as a trainer would leave them, without training."""

import dataclasses
from math import isfinite

from evorl.algorithms.dqn import DQN
from evorl.config import dump_config, parse_config
from evorl.evolution.lineage import FitnessLine, birth
from evorl.genome import Architecture, Genome
from evorl.networks.layout import fresh_parameters
from evorl.networks.spec import NetworkSpec
from evorl.runs.agent import Interface, SavedAgent
from evorl.runs.directory import RunDirectory

HYPERPARAMETERS = DQN().hyperparameters
STEPS = 1000  # own steps a generation


def initial(id=0, architecture=None, **hyperparameters):
    own = {"q": architecture or Architecture((64, 64))}
    return Genome(id, own, HYPERPARAMETERS | hyperparameters)


def child(parent, id, born, mutation="hyperparameters", architecture=None, **hyperparameters):
    return dataclasses.replace(
        parent,
        id=id,
        parent=parent.id,
        born=born,
        mutation=mutation,
        architectures={"q": architecture or parent.architectures["q"]},
        hyperparameters=dict(parent.hyperparameters) | hyperparameters,
    )


def evaluated(id, generation, fitness=0.0, error=1.0, own_steps=None, place=0):
    env_steps, steps = 4 * STEPS * (generation + 1), STEPS * (generation + 1)
    own = steps if own_steps is None else own_steps
    known = (value if isfinite(value) else None for value in (fitness, error))
    line = FitnessLine("fitness", generation, env_steps, own, place, id, *known)
    return dataclasses.asdict(line)


# Two places, five generations. The best, 4, goes back over 3 and 2 to 0:
#   place 0:  0  0  0  0  0
#   place 1:  1  2  3  3  4
ADAM = initial(0, lr=1e-3)
FAMILY = {
    0: ADAM,
    1: initial(1, lr=5e-4),
    2: (two := child(ADAM, 2, 1, lr=0.00125, batch_size=128)),
    3: (three := child(two, 3, 2, "architecture", Architecture((64, 96)))),
    4: child(three, 4, 4, gamma=0.995),
}


def family_lines():
    """The lineage of FAMILY; the fitness of agent i in generation g is 100 i + g."""
    lines = [birth(FAMILY[0], 0, None), birth(FAMILY[1], 1, None)]
    for generation, at_one in enumerate([1, 2, 3, 3, 4]):
        genome = FAMILY[at_one]
        if genome.parent is not None and genome.born == generation:
            lines.append(birth(genome, 1, FAMILY[genome.parent]))
        for place, id in enumerate((0, at_one)):
            lines.append(evaluated(id, generation, 100.0 * id + generation, place=place))
    return lines


def saved_agent(genome, spec, parameters, interface=None, **facts):
    """An agent of one network; by default the environment gives what the network reads."""
    if interface is None:
        shape = () if spec.one_hot else spec.image or (spec.inputs,)
        interface = Interface(shape, "uint8" if spec.scale != 1 else "float32")
    algorithm = DQN().model_dump(mode="json")
    return SavedAgent(genome, {"q": spec}, parameters, algorithm, interface, facts)


def saved(genome=FAMILY[4], **facts):
    known = {"env": "CartPole-v1", "place": 1, "fitness": 404.0, "confirmed": 398.5}
    known |= {"generation": 4, "env_steps": 20 * STEPS, "own_steps": 5 * STEPS}
    spec = NetworkSpec(4, 2, dueling=True)
    return saved_agent(genome, spec, fresh_parameters({"q": spec}, genome, 0), **(known | facts))


def make_run(folder, name="run", *, score=450.0, steps=(1000, 100), options=(), **config):
    """A finished run, with configuration and summary only."""
    directory = RunDirectory.create(folder, name)
    parsed = parse_config({"name": name, "env": {"id": "CartPole-v1"}, **config}, options)
    directory.write_config(dump_config(parsed))
    estimate = {"value": score, "low": score - 5.0, "high": score + 5.0}
    directory.write_summary(
        {
            "name": name,
            "env": parsed.env.id,
            "seed": parsed.seed,
            "score": {"mean": estimate, "iqm": estimate, "episodes": 100},
            "env_steps": steps[0],
            "evaluation_steps": steps[1],
        }
    )
    return directory


def make_family_run(folder, name="family"):
    """A finished run of FAMILY."""
    directory = make_run(folder, name)
    directory.append_lineage(family_lines())
    directory.save_best(saved())
    return directory
