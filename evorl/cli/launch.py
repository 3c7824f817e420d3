"""evorl launch: train on ranks that somebody else's engine starts."""

from pathlib import Path

import click

from evorl.cli.shared import OVERRIDES, PATH, QUIET, VERBOSE, echo_score, make_console
from evorl.errors import ConfigError

ENGINES = ("ray",)


@click.command
@click.argument("config", type=PATH)
@OVERRIDES
@click.option("--on", "engine", required=True, metavar="ENGINE", help="What starts them: ray.")
@click.option("--ranks", type=click.IntRange(1, 4096), required=True, help="How many.")
@click.option(
    "--cpus",
    type=click.IntRange(1, 4096),
    default=1,
    show_default=True,
    help="CPUs of each rank, also for actors that are its children.",
)
@click.option("--gpus", is_flag=True, help="A GPU for each rank; else they compute on the CPU.")
@click.option(
    "--retries",
    type=click.IntRange(0, 1000),
    default=3,
    show_default=True,
    help="How often all ranks may start again, after one or its node has died.",
)
@QUIET
@VERBOSE
def launch(
    config: Path,
    overrides: tuple[str, ...],
    engine: str,
    ranks: int,
    cpus: int,
    gpus: bool,
    retries: int,
    quiet: bool,
    verbose: bool,
) -> None:
    """Train as the YAML file CONFIG says, on ranks that a cluster of Ray starts.

    Each is what accelerate launch would start, with evorl train CONFIG --resume auto: a run of this
    name resumes. The cluster is that of RAY_ADDRESS, else one that runs on this machine; if there
    is none, one is started here until the run ends. Every node needs evorl.

    \b
    evorl launch configs/dqn/lunar_lander.yaml --on ray --ranks 2
    evorl launch configs/a3c/cartpole.yaml mesh.actors=6 --on ray --ranks 7 --retries 10
    """
    from evorl.config import did_you_mean, load_config
    from evorl.training import Ask, ending_on_signals, train_on_ray

    console = make_console(quiet, verbose)
    if engine not in ENGINES:
        near = did_you_mean(engine, ENGINES)
        raise ConfigError(f"--on: must be {' or '.join(ENGINES)}, got {engine!r}{near}")
    flags = [flag for flag, wanted in (("--quiet", quiet), ("--verbose", verbose)) if wanted]
    asked = Ask(ranks, cpus, gpus, retries)
    try:
        with ending_on_signals():
            directory = train_on_ray(load_config(config, overrides), asked, console, flags)
    except KeyboardInterrupt as error:
        error.add_note("the same command resumes the run")
        raise
    echo_score(directory.summary(), directory.path)
