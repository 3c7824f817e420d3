"""evorl init and schema: a configuration to start from, and what editors complete it by."""

import json
import re
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evorl.cli.shared import output
from evorl.errors import RunError

if TYPE_CHECKING:
    from evorl.envs import ActionSpec, ObservationSpec

AGENTS, ENVS = 8, 4
# Where all learn from all experience it costs updates only to keep more of them.
SURVIVORS, SHARING_SURVIVORS = 2, 4
WITHIN = 0.3  # of the budget the others go
GENERATIONS = 10  # that the budget is enough for
SHORTEST, LONGEST = 1000, 10_000  # steps of a generation while all agents are there
EPISODES = {"episodes": 4, "confirm_episodes": 20, "final_episodes": 100}
ALGORITHMS = {"discrete": "dqn", "multidiscrete": "ppo", "continuous": "sac"}  # for such actions
MUTATION = {"hyperparameters": 0.6, "architecture": 0.2, "parameters": 0.2}
# Convolutions (channels, kernels, strides) for images of at least N pixels on a side.
CONVOLUTIONS = (
    (64, ([32, 64, 64], [8, 4, 3], [4, 2, 1])),
    (24, ([16, 32], [4, 3], [2, 2])),
    (5, ([16, 32], [3, 3], [1, 1])),
    (1, ([16, 32], [1, 1], [1, 1])),
)
HEADING = """\
# yaml-language-server: $schema=evorl.schema.json
# {algorithm} on {env_id}: {what}.
# What is left out has its default. Editors show all options, by the file that the first line names.
# Change one value for one run on the command line: evorl train FILE seed=2

"""
SCHEMA = "evorl.schema.json"
STOP_AT = "  # stop_at: {:<13g}# End early, at this confirmed fitness."
# Before a capital and a small letter; before capitals at a word's end; at what is no letter.
WORDS_BEGIN = r"(?<=[A-Za-z0-9])(?=[A-Z][a-z])|(?<=[a-z])(?=[A-Z]{2,}(?![a-z]))|[^A-Za-z0-9]+"
COMMENTS, WIDTH = 26, 100  # the column in which comments begin, and the longest line


@click.command
@click.argument("env_id", metavar="ENV_ID")
@click.option("--algorithm", metavar="NAME", help="Which; left out: one that suits its actions.")
@output("FILE", "Where to write it; the environment's name, .yaml, if left out.")
def init(env_id: str, algorithm: str | None, output: Path | None) -> None:
    """Write a commented configuration for the Gymnasium environment ENV_ID, to start from.

    Network, generations and budget suit its observations and the length of its episodes. ENV_ID is
    a registered id, or module:id to import the module that registers it. A file that exists is
    never overwritten. evorl.schema.json, by which editors complete the options, is written beside
    it.

    \b
    evorl init CartPole-v1
    evorl init LunarLander-v3 --algorithm ppo -o configs/lander.yaml
    evorl init my_package.envs:Maze-v0
    """
    from evorl.envs import find

    solved_at, file = find(env_id).reward_threshold, output or Path(f"{name_of(env_id)}.yaml")
    chosen, what = starter(env_id, algorithm)
    text = _commented(chosen, what)
    try:
        with file.open("x", encoding="utf-8") as opened:
            opened.write(text + STOP_AT.format(solved_at or 100) + "\n")
    except FileExistsError:
        raise RunError(f"{file}: exists already; remove it, or give another name with -o") from None
    except OSError as error:
        raise RunError(f"{file}: cannot be written: {error.strerror}") from None
    click.echo(f"{file}: {env_id}, {what}")
    _write_schema(file.with_name(SCHEMA))
    click.echo(f"train: evorl train {file}")


def _write_schema(file: Path) -> None:
    """What the first line of the configuration names; one that is there already stays."""
    from evorl.runs import atomic_write

    text = _schema_text()
    if not file.exists():
        atomic_write(file, text)
    elif not file.is_file() or file.read_bytes() != text.encode():
        click.echo(f"{file}: of another version; evorl schema > {file} writes it anew")


def starter(env_id: str, algorithm: str | None = None) -> tuple[dict[str, Any], str]:
    """Options to start from in an environment, and a line on what it is."""
    from evorl.envs import EnvSpec, adapted, make_env

    spec = EnvSpec(env_id)
    env = make_env(spec)
    try:
        adapter = adapted(env, spec)
        limit = env.spec.max_episode_steps if env.spec else None
    finally:
        env.close()
    length = "no limit to" if limit is None else f"up to {limit:,} steps"
    seen, done = _describe(adapter.observation), _describe_action(adapter.action)
    algorithm = algorithm or ALGORITHMS[adapter.action.kind]
    chosen = _options(env_id, algorithm, adapter.observation, limit or 0)
    return chosen, f"{seen}, {done}, {length} an episode"


def name_of(env_id: str) -> str:
    """A name for runs: lunar_lander for LunarLander-v3."""
    last = re.split(r"[:/]", env_id)[-1]
    words = re.sub(r"-v\d+$", "", last)
    words = re.sub(WORDS_BEGIN, "_", words).strip("_").lower()
    return words[:100] or "run"


def _describe(observation: "ObservationSpec") -> str:
    if observation.kind == "discrete":
        return f"one of {observation.n} states"
    if observation.kind == "image":
        return f"images of {' × '.join(map(str, observation.shape))}"
    masks = " and action masks" if observation.mask else ""
    return f"vectors of {observation.shape[0] - observation.mask} numbers{masks}"


def _describe_action(action: "ActionSpec") -> str:
    if action.kind == "continuous":
        (count,) = action.shape
        return f"actions of {count} number{'s' if count > 1 else ''}"
    return " × ".join(map(str, action.choices)) + " actions"


def _options(
    env_id: str, algorithm: str, observation: "ObservationSpec", limit: int
) -> dict[str, Any]:
    """Network, generations and budget that suit observations and the length of an episode."""
    every = min(max(SHORTEST, 2 * limit), LONGEST)
    shares = algorithm == "dqn"
    learning = {"name": algorithm} | ({"learn_step": 4} if shares else {})
    replay = {"share": "rank"} | ({"counts": "all"} if shares else {})
    survivors = SHARING_SURVIVORS if shares else SURVIVORS
    return {
        "name": name_of(env_id),
        "seed": 1,
        "env": {"id": env_id, "num_envs": ENVS},
        "algorithm": learning,
        "network": _network(observation),
        "replay": {"capacity": _capacity(observation)} | replay,
        "population": {"size": AGENTS, "init": "sample"},
        "evaluation": {"every": every} | EPISODES,
        "evolution": {
            "method": "evolution",
            "halving": {"survivors": survivors, "within": WITHIN},
            "mutation": MUTATION,
        },
        "run": {"folder": "runs", "if_exists": "number"},
        "budget": {"env_steps": every * ENVS * AGENTS * GENERATIONS},
    }


def _commented(chosen: dict[str, Any], what: str) -> str:
    """The YAML text; options have the comments of the schema, and all of the algorithm's are in."""
    from evorl.config import parse_config

    config = parse_config(chosen, source="starter")
    if config.algorithm.experience != "replay":
        del chosen["replay"]
    chosen["algorithm"] = config.algorithm.model_dump()
    chosen["evolution"]["spaces"] = config.evolution.model_dump()["spaces"]
    heading = HEADING.format(algorithm=config.algorithm.name, env_id=config.env.id, what=what)
    return heading + "".join(f"{line}\n" for line in _lines(chosen, config))


def _lines(chosen: Mapping[str, Any], section: Any, indent: str = "") -> Iterator[str]:
    """Keys and values as YAML, each with what the section's class says of it."""
    from evorl.config import dump_yaml

    fields = getattr(type(section), "model_fields", {})
    for name, value in chosen.items():
        if not isinstance(value, dict):
            text = indent + dump_yaml({name: value}).strip()
        elif "kind" in value:  # a space
            text = f"{indent}{name}: {dump_yaml(value, flow=True)}"
        else:
            text = f"{indent}{name}:" if indent else f"\n{name}:"
        about = fields[name].description if name in fields else None
        line = f"{text:{COMMENTS - 2}}  # {about}" if about and indent else text
        yield line if len(line) <= WIDTH else f"{indent}# {about}\n{text}"
        if text.endswith(":"):
            yield from _lines(value, getattr(section, name), indent + "  ")


def _network(observation: "ObservationSpec") -> dict[str, Any]:
    if observation.kind == "discrete":  # one input for each state
        return {"hidden": [64], "activation": "relu"}
    if observation.kind == "vector":
        return {"hidden": [64, 64], "activation": "relu"}
    side = min(observation.shape[1:])
    sizes = next(sizes for least, sizes in CONVOLUTIONS if side >= least)
    convolutions = dict(zip(("channels", "kernels", "strides"), sizes, strict=True))
    return {**convolutions, "hidden": [128], "activation": "relu"}


def _capacity(observation: "ObservationSpec") -> int:
    """Transitions of about 1 GiB, and no more than help."""
    size = 2 * observation.dtype.itemsize * prod(observation.shape)
    return max(10_000, min(100_000, 10_000 * (2**30 // max(size, 1) // 10_000)))


@click.command
@click.option("--markdown", is_flag=True, help="Print a page with all options instead.")
def schema(markdown: bool) -> None:
    """Print the JSON schema of configuration files, by which an editor completes them.

    With --markdown it is a page to read: every option with its type, default and bounds.

    \b
    evorl schema > configs/evorl.schema.json
    evorl schema --markdown > docs/configuration.md
    """
    from evorl.config import markdown as reference

    click.echo(reference() if markdown else _schema_text(), nl=False)


def _schema_text() -> str:
    from evorl.config import make_json_schema

    return json.dumps(make_json_schema(), indent=2) + "\n"
