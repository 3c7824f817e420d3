"""evorl doctor: does this machine have what evorl needs?

`python -m evorl.cli.doctor` is what each of the two ranks runs.
"""

import importlib.metadata
import netrc
import os
import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import click

from evorl.cli.shared import JSON, echo_json
from evorl.errors import one_line
from evorl.machine import cores

LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
SECONDS = 60.0  # that two ranks may take
WANDB = "api.wandb.ai"


class Check(NamedTuple):
    """One question to the machine."""

    name: str
    run: Callable[[], str]  # what there is; raises what is wrong
    advice: str  # what to do then
    needed: bool = True  # training fails without


@click.command
@JSON
def doctor(as_json: bool) -> None:
    """Check whether this machine has what evorl needs, and say what to do where it has not.

    An environment makes a step, and two ranks start and meet. Takes about ten seconds, and sends
    nothing anywhere. Exit code 1 if something that training needs is broken; what may be missing is
    optional.

    \b
    evorl doctor
    evorl doctor && evorl train configs/dqn/cartpole.yaml
    """
    failed, found = [], []
    for check in CHECKS:
        try:
            with warnings.catch_warnings(action="ignore"):  # of packages, about themselves
                state, colour, what = "ok", "green", check.run()
        except Exception as error:  # a broken installation raises anything
            state, colour = ("broken", "red") if check.needed else ("missing", "yellow")
            first = str(error).partition("\n")[0]
            what = f"{type(error).__name__}: {first}; {check.advice}"
            failed += [check.name] if check.needed else []
        found.append({"name": check.name, "state": state, "what": one_line(what)})
        if not as_json:
            click.echo(f"{check.name:12}  {click.style(f'{state:7}', colour)}  {one_line(what)}")
    if as_json:
        echo_json(found)
    else:
        click.echo(f"not ready: {', '.join(failed)}" if failed else "ready to train")
    if failed:
        sys.exit(1)


def check_torch() -> str:
    """PyTorch, by a sum on the device that training would take."""
    import torch

    device = torch.accelerator.current_accelerator(check_available=True)
    torch.ones(2, device=device or "cpu").sum().item()
    count = torch.accelerator.device_count()
    where = f"{count} × {device.type}" if device else f"no GPU: trains on {cores()} CPU cores"
    return f"{torch.__version__}, {where}"


def check_gymnasium() -> str:
    """Gymnasium, by a step of an environment."""
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    env.reset(seed=0)
    env.step(env.action_space.sample())
    env.close()
    return f"{gymnasium.__version__}, CartPole-v1 runs"


def check_compiler() -> str:
    """A C++ compiler."""
    name = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if (compiler := shutil.which(name)) is None:
        raise FileNotFoundError(f"no {name}: long runs are not compiled, and slower")
    return f"{compiler}, for torch.compile"


def check_ranks(module: str = "evorl.cli.doctor") -> str:
    """Launch two ranks on the CPU, which run a module; RuntimeError with their first error."""
    env = os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *LAUNCH, module]
    here = Path(__file__).parents[2]  # and not the current folder, from which -m would import
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, env=env, cwd=here
    )
    if done.returncode:
        errors = (line.strip() for line in done.stderr.splitlines() if "rror: " in line)
        raise RuntimeError(next(errors, f"exit code {done.returncode}"))
    return "started by torch's launcher, met over gloo"


def check_wandb() -> str:
    """Weights & Biases, by its login; nothing is sent to find out."""
    version = importlib.metadata.version("wandb")
    if "WANDB_API_KEY" not in os.environ and WANDB not in netrc.netrc().hosts:
        raise PermissionError(f"{version} has no key for {WANDB}")
    return f"{version}, logged in"


def meet() -> None:
    """What each of the two ranks does: hear from the other."""
    from evorl.distributed import World

    world = World.start(agents=2, timeout=30.0)
    try:
        world.gather(b"here")
    finally:
        world.close()


CHECKS = (
    Check("python", lambda: f"{platform.python_version()} in {sys.prefix}", ""),
    Check("torch", check_torch, "reinstall it"),
    Check("accelerate", lambda: importlib.metadata.version("accelerate"), "reinstall it"),
    Check("gymnasium", check_gymnasium, "reinstall it"),
    Check("two ranks", check_ranks, "see docs/distributed.md; one process works without"),
    Check("C++ compiler", check_compiler, "install g++ and python3-dev, or set CXX", False),
    Check("W&B", check_wandb, "pip install wandb and wandb login, or use it offline", False),
)


if __name__ == "__main__":
    meet()
