"""Runs that resume in other circumstances: other replays, other ranks, another disk."""

import subprocess
import sys

import pytest

from .launching import ROOT
from .runs import BIN, Run, any_moment, configured, deterministic, train
from .test_resume import RANDOM, resumed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "options",
    [
        ("replay.share=rank", "replay.kind=prioritized"),
        ("replay.share=world",),
        ("mesh.data=2", "replay.share=rank", "population.size=2"),
    ],
    ids=lambda options: options[0],
)
def test_killed_and_resumed_to_the_same_bytes(tmp_path, options):
    short = ("budget.env_steps=1440", *options)
    expected = train(tmp_path / "whole", *short, ranks=2)
    folder = tmp_path / "killed"
    run = Run(folder, "train", configured(folder), *short, ranks=2)
    any_moment(RANDOM, folder / "runs" / "run", 0)
    run.kill()
    run.launcher.wait()
    code, said = Run(folder, "resume", "runs/run", ranks=2).wait()
    assert code == 0 or "the run is finished" in said, said
    assert deterministic(folder / "runs" / "run") == deterministic(expected)


def test_as_many_ranks_in_another_mesh(tmp_path):
    train(tmp_path, "budget.env_steps=960", "replay.share=rank", "replay.kind=prioritized", ranks=2)
    said = resumed(tmp_path, 2, "mesh.data=2", "budget.env_steps=1920")
    assert "replays are not what each had" in said


def test_ranks_with_the_same_agents_begin_to_learn_together(tmp_path):
    """Episodes end at other times on each; with n_step 30 so do replays begin to fill."""
    options = ("mesh.data=2", "env.num_envs=1", "population.size=1", "replay.share=rank")
    options += ("algorithm.n_step=30", "algorithm.learning_starts=0", "budget.env_steps=240")
    train(tmp_path, *options, ranks=2)


def test_only_the_main_rank_knows_where_the_run_is(tmp_path):
    """The other one is in another folder, as on another machine."""
    train(tmp_path, "budget.env_steps=960", ranks=2)
    expected = train(tmp_path / "whole", "budget.env_steps=1920", ranks=2)
    script = tmp_path / "elsewhere.py"
    script.write_text(
        "import os\n"
        "if os.environ['RANK'] == '1':\n"
        "    os.makedirs('elsewhere', exist_ok=True)\n"
        "    os.chdir('elsewhere')\n"
        "from evorl.cli import main\n"
        "main()\n"
    )
    words = ("resume", "runs/run", "budget.env_steps=1920")
    code, said = Run(tmp_path, *words, ranks=2, script=script).wait()
    assert code == 0, said
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert deterministic(tmp_path / "runs" / "run") == deterministic(expected)


def test_without_a_shared_disk_all_but_the_replays_is_kept(tmp_path):
    """The population arrives all the same; what resumes without its replays fills them first."""
    script = tmp_path / "apart.py"
    script.write_text(
        "import os, pathlib\n"
        "exists = pathlib.Path.exists\n"
        "from evorl.runs.checkpoint import Checkpoints\n"
        "if os.environ['RANK'] == '1':\n"
        "    Checkpoints.newest = lambda self: None\n"
        "    pathlib.Path.exists = lambda p: exists(p) and 'checkpoints' not in p.parts\n"
        "from evorl.cli import main\n"
        "main()\n"
    )
    words = ("train", configured(tmp_path), "budget.env_steps=960")
    code, said = Run(tmp_path, *words, ranks=2, script=script).wait()
    assert code == 0, said
    assert said.count("checkpoints leave replays out") == 1
    files, (name, checkpoint) = deterministic(tmp_path / "runs" / "run")
    shared, (other, expected) = deterministic(
        train(tmp_path / "shared", "budget.env_steps=960", ranks=2)
    )
    assert (files, name) == (shared, other)
    assert checkpoint.keys() == {n for n in expected if "replay" not in n}
    for own in ("population.safetensors", "progress.safetensors"):
        assert checkpoint[own] == expected[own]
    more = ("resume", "runs/run", "budget.env_steps=1440")
    code, said = Run(tmp_path, *more, ranks=2).wait()
    assert code == 0, said
    assert "replays were not kept and fill up first" in said
    code, said = Run(tmp_path / "shared", *more, ranks=2, script=script).wait()
    assert code == 0, said
    assert "not all ranks see the checkpoint, and replays fill up first" in said


def test_a_schedule_on_ranks(tmp_path):
    train(tmp_path, "budget.env_steps=960")
    schedule = subprocess.run(
        [BIN / "evorl", "schedule", "runs/run"], cwd=tmp_path, capture_output=True, check=True
    )
    (tmp_path / "schedule.yaml").write_bytes(schedule.stdout)
    words = ("train", configured(tmp_path), "--replay-schedule", "schedule.yaml")
    code, said = Run(tmp_path, *words, "mesh.data=2", "name=again", ranks=2).wait()
    assert code == 0, said
    assert "seed 3: held-out score" in said


def test_one_world_trains_several_runs(tmp_path):
    script = tmp_path / "several.py"
    script.write_text(
        "import sys, evorl\n"
        "config = evorl.load_config(sys.argv[1], ['budget.env_steps=480'])\n"
        "world = evorl.World.start(config.population.size)\n"
        "for seed in (1, 2):\n"
        "    evorl.train(config, [f'seed={seed}', f'name=seed{seed}'], world=world)\n"
        "world.close()\n"
    )
    code, said = Run(tmp_path, configured(tmp_path), ranks=2, script=script).wait()
    assert code == 0, said
    for seed in (1, 2):
        assert (tmp_path / "runs" / f"seed{seed}" / "summary.json").exists()


@pytest.mark.parametrize("option", ["name=other", "run.folder=elsewhere", "algorithm.lr=0.1"])
def test_what_cannot_change_is_refused_by_name(tmp_path, option):
    directory = train(tmp_path, "budget.env_steps=480")
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    code, said = Run(tmp_path, "resume", "runs/run", "budget.env_steps=960", option).wait()
    assert (code, said.count("\n")) == (2, 1)
    assert said.startswith(f"error: {option.split('=')[0]}: cannot change in a run that has begun")
    assert {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()} == before


def test_environments_that_raise_on_every_rank_end_the_run(tmp_path):
    """Past the limit, with the traceback of one of them; nothing hangs, nothing is left."""
    (tmp_path / "broken.py").write_text(
        "import gymnasium as gym\n"
        "from gymnasium.envs.classic_control import CartPoleEnv\n"
        "class Broken(CartPoleEnv):\n"
        "    steps = 0  # of all of them in a process\n"
        "    def step(self, action):\n"
        "        Broken.steps += 1\n"
        "        if Broken.steps > 100:\n"
        "            raise OSError('the simulator is gone')\n"
        "        return super().step(action)\n"
        "gym.register('Broken-v0', Broken)\n"
    )
    options = ("env.id=broken:Broken-v0", "env.max_failures=3")
    code, said = Run(tmp_path, "train", configured(tmp_path), *options, ranks=2).wait()
    assert code != 0
    assert "the simulator is gone" in said
    assert "env.max_failures" in said


def test_the_demo_ends_bad_input_in_one_line(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "demos" / "demo_online_distributed.py", "budget.env_stepz=3"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        "error: override budget.env_stepz=3: budget.env_stepz: unknown key; did you mean env_steps?"
    ]
    assert list(tmp_path.iterdir()) == []
