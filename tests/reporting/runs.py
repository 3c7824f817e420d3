"""Run directories with metrics, as a trainer would leave them at some moment."""

from tests.synthetic import FAMILY, STEPS, birth, family_lines, make_family_run, make_run, saved

PLACES = [(0, 1), (0, 2), (0, 3), (0, 3), (0, 4)]  # who is in places 0 and 1, by generation


def metrics(generation, ids=None, fitness=None, **changes):
    """A line of metrics of FAMILY: the fitness of agent i in generation g is 100 i + g."""
    ids = list(ids or PLACES[generation])
    genomes = [FAMILY[id] for id in ids]
    names = genomes[0].hyperparameters
    return {
        "generation": generation,
        "env_steps": 4 * STEPS * (generation + 1),
        "evaluation_steps": 10 * (generation + 1),
        "updates": 100 * (generation + 1),
        "episodes": 7,
        "failures": 0,
        "seconds": 2.0 * (generation + 1),
        "steps_per_second": 2000.0,
        "best": 90.0 + generation,
        "ids": ids,
        "fitness": fitness or [100.0 * id + generation for id in ids],
        "alive": [True] * len(ids),
        "loss": [1.0 / (generation + 1 + id) for id in ids],
        "exploration": [0.5] * len(ids),
        "hyperparameters": {name: [g.hyperparameters[name] for g in genomes] for name in names},
        "hidden": {"q": [list(genome.architectures["q"].hidden) for genome in genomes]},
        "shares": {"act": 0.25, "update": 0.75},
    } | changes


TOLD = {"alive": 2, "messages": 20, "lag": 3.5, "max_lag": 6, "queue": 1.25}
TOLD |= {"frames_per_second": 18000.0, "refused": {"generation": 6, "lag": 4}, "gone": 0}


def with_actors(folder, name="actors"):
    """Three generations of a run with two actors; in the last one has died, and sent nonsense."""
    directory = just_begun(folder, name, mesh={"actors": 2})
    directory.append_lineage([line for line in family_lines()[2:] if line["generation"] < 3])
    for generation in range(2):
        directory.append_metrics(metrics(generation, actors=TOLD))
    last = {"alive": 1, "gone": 1, "refused": {"range": 3, "<b>new</b>": 1}}
    directory.append_metrics(metrics(2, actors=TOLD | last))
    return directory


def training(generation, agents=2):
    """Curves of a generation: agent in place p gets 10 g + k + p / 10 in part k."""
    points = [[10.0 * generation + k + p / 10 for p in range(agents)] for k in range(4)]
    start = 4 * STEPS * generation
    return {
        "env_steps": [start + STEPS * (k + 1) for k in range(4)],
        "return": points,
        "length": points,
        "loss": points,
        "updates_per_step": [[1.0] * agents] * 4,
        "measured": {"gradient_norm": [2.0 + generation] * agents, "q_value": [None] * agents},
    }


def with_curves(folder, name="curves"):
    """All five generations, the first by a version that had no curves yet."""
    directory = make_family_run(folder, name)
    directory.append_metrics(metrics(0))
    for generation in range(1, len(PLACES)):
        directory.append_metrics(metrics(generation, training=training(generation)))
    return directory


def finished(folder, name="family"):
    """All five generations, scored."""
    directory = make_family_run(folder, name)
    for generation in range(len(PLACES)):
        directory.append_metrics(metrics(generation))
    return directory


def just_begun(folder, name="begun", **config):
    """The configuration is there, and the first two agents."""
    directory = make_run(folder, name, population={"size": 2}, **config)
    directory.remove_summary()
    directory.append_lineage([birth(FAMILY[0], 0, None), birth(FAMILY[1], 1, None)])
    return directory


def going(folder, name="going", generations=3):
    """So many generations, not finished; the best agent is that of the last but one."""
    directory = just_begun(folder, name)
    lines = [line for line in family_lines()[2:] if line["generation"] < generations]
    directory.append_lineage(lines)
    for generation in range(generations):
        directory.append_metrics(metrics(generation))
    directory.save_best(saved(FAMILY[PLACES[generations - 2][1]], generation=generations - 2))
    return directory


def go_on(directory, generation):
    """One generation more."""
    directory.append_metrics(metrics(generation))
    lines = [line for line in family_lines() if line["generation"] == generation]
    directory.append_lineage(lines)


def snapshot(path):
    """Every file below a folder, with what is in it and when it was written."""
    return {
        file: (file.read_bytes(), file.stat().st_mtime_ns)
        for file in path.rglob("*")
        if file.is_file()
    }
