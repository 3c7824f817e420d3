"""The command line as a user meets it: exit codes, streams, and nothing left behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import types

import psutil
import pytest
import torch
from click.testing import CliRunner

from evorl import __version__
from evorl.cli import cli
from evorl.config import dump_config, parse_config
from evorl.evolution.schedule import read_schedule
from evorl.runs.directory import Estimate, RunDirectory
from tests.synthetic import FAMILY, evaluated, make_family_run, make_run, saved

from .answers import CARTPOLE, ROOT, assert_one_error, everything_in, wait_for

torch.set_num_threads(1)

TINY = [
    "env.num_envs=2",
    "population.size=2",
    "algorithm.learning_starts=16",
    "algorithm.batch_size=16",
    "evaluation.every=50",
    "evaluation.episodes=1",
    "evaluation.final_episodes=2",
    "evaluation.max_steps=30",
    "budget.env_steps=200",
    "env.kwargs={max_episode_steps: 25}",
]
GOOD = "env: {id: CartPole-v1}\nbudget: {env_steps: 100}\n"


def shell(*arguments, **options):
    command = [sys.executable, "-m", "evorl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def assert_score_lines(lines, folder):
    assert lines[0].startswith("held-out score over 2 episodes: mean ")
    assert lines[0].count("(95 % interval ") == 2
    assert ", IQM " in lines[0]
    assert lines[1] == f"best agent, metrics and summary: {folder}"
    assert len(lines) == 2


def test_train_says_what_the_summary_says(evorl, tmp_path):
    code, out, _ = evorl("train", CARTPOLE, *TINY)
    assert code == 0
    score = json.loads((tmp_path / "runs" / "cartpole" / "summary.json").read_text())["score"]
    assert f"mean {Estimate(**score['mean'])}, IQM" in out.splitlines()[-2]


@pytest.mark.parametrize("flag", ["-q", "--quiet"])
def test_quiet_prints_the_score_only(evorl, flag):
    code, out, err = evorl("train", CARTPOLE, *TINY, flag)
    assert (code, err) == (0, "")
    assert_score_lines(out.splitlines(), "runs/cartpole")


def test_warnings_leave_the_score_alone(evorl):
    code, out, err = evorl("train", CARTPOLE, *TINY, "env.kwargs={}", "--quiet")
    assert code == 0
    assert_score_lines(out.splitlines(), "runs/cartpole")
    assert err.startswith("warning: evaluation.every=50 is less than an episode")


SHAKY = """
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class Shaky(CartPoleEnv):
    def reset(self, **kwargs):
        self.time = 0
        return super().reset(**kwargs)

    def step(self, action):
        self.time += 1
        if self.time == 5:
            raise OSError("the simulator is gone")
        return super().step(action)

gymnasium.register("Shaky-v0", Shaky)
"""


@pytest.mark.parametrize("backend", ["sync", "async"])
def test_an_environment_that_raises_too_often_shows_its_traceback(evorl, tmp_path, backend):
    (tmp_path / "shaky.py").write_text(SHAKY)
    options = [*TINY[:-1], "env.id=shaky:Shaky-v0", "env.max_failures=2", f"env.backend={backend}"]
    code, _, err = evorl("train", CARTPOLE, *options)
    assert code == 2
    said = err.splitlines()
    what = "OSError: the simulator is gone"
    told = "'shaky:Shaky-v0' raised, and a new environment took its place"
    assert [line for line in said if line.startswith("warning: ")] == [
        f"warning: {told} ({count} of 2 allowed by env.max_failures): {what}" for count in (1, 2)
    ]
    assert said[-1] == (
        "error: env.max_failures: 'shaky:Shaky-v0' raised too often (3, 2 allowed; fix it or"
        f" allow more): {what}"
    )
    trace = said[said.index("Traceback (most recent call last):") : -1]
    assert any("shaky.py" in line for line in trace)
    assert trace[-1] == what


BAD = {
    "no such file": ("nothing.yaml", []),
    "a folder": (".", []),
    "not YAML": ("env: [", []),
    "not UTF-8": (b"env: {id: \xff}\n", []),
    "empty": ("", []),
    "unknown key": (GOOD + "sead: 1\n", []),
    "wrong type": (GOOD + "seed: yes please\n", []),
    "out of range": (GOOD + "algorithm: {gamma: 1.5}\n", []),
    "given twice": (GOOD + "seed: 1\nseed: 2\n", []),
    "does not fit together": (GOOD + "replay: {capacity: 10}\n", []),
    "override without a value": (GOOD, ["seed"]),
    "override of an unknown key": (GOOD, ["algorithm.lrr=1"]),
    "override out of range": (GOOD, ["population.size=0"]),
    "two lines in an override": (GOOD, ["name=a\nb"]),
    "unknown environment": (GOOD, ["env.id=CartPoel-v1"]),
    "unknown module": (GOOD, ["env.id=nowhere:CartPole-v1"]),
    "unknown argument of the environment": (GOOD, ["env.kwargs={colour: red}", "env.num_envs=1"]),
    "unknown wrapper": (GOOD, ["env.wrappers=[{name: Wrap}]"]),
}


def write(folder, text):
    if text in ("nothing.yaml", "."):
        return text
    content = text if isinstance(text, bytes) else text.encode()
    (folder / "run.yaml").write_bytes(content)
    return "run.yaml"


@pytest.mark.parametrize("kind", BAD)
def test_bad_input_is_one_line_and_writes_nothing(evorl, tmp_path, kind):
    text, overrides = BAD[kind]
    file = write(tmp_path, text)
    before = sorted(tmp_path.rglob("*"))
    assert_one_error(*evorl("train", file, *overrides))
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("override", ['run.folder="a\\0b"', "env.id=.module:CartPole-v1"])
def test_strange_names_are_one_line_too(evorl, tmp_path, override):
    file = write(tmp_path, GOOD)
    assert_one_error(*evorl("train", file, override, "--quiet"))


def test_bad_input_in_a_process_of_its_own(tmp_path):
    done = shell("train", CARTPOLE, "algorithm.lr=-1", cwd=tmp_path)
    assert_one_error(done.returncode, done.stdout, done.stderr)
    assert "algorithm.lr: must be greater than 0, got -1" in done.stderr
    assert list(tmp_path.iterdir()) == []


LATE = {
    "actions that are not discrete": ["env.id=Pendulum-v1"],
    "no native version": ["env.id=LunarLander-v3", "env.backend=native"],
    "an existing run": ["run.folder=."],
    "a folder that is a file": ["run.folder=run.yaml"],
}


@pytest.mark.parametrize("quiet", [["--quiet"], []], ids=["quiet", "talking"])
@pytest.mark.parametrize("kind", LATE)
def test_what_shows_up_late_is_one_line_too(evorl, tmp_path, kind, quiet):
    write(tmp_path, GOOD)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").touch()
    before = sorted(tmp_path.rglob("*"))
    code, out, err = evorl("train", "run.yaml", *LATE[kind], *quiet)
    assert sorted(tmp_path.rglob("*")) == before
    assert_one_error(code, out, err)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["train"], "Missing argument 'CONFIG'"),
        (["train", CARTPOLE, "--fast"], "No such option"),
        (["trian"], "No such command 'trian'. Did you mean 'train'?"),
        (["schema", "extra"], "unexpected extra argument"),
        (["lineage"], "Missing argument 'RUN'"),
        (["lineage", "a", "b"], "unexpected extra argument"),
        (["lineage", "a", "--agent", "best"], "'best' is not a valid integer"),
        (["schedule"], "Missing argument 'RUN'"),
        (["compare"], "Missing argument 'RUN...'"),
        (["--wrong"], "No such option"),
    ],
)
def test_wrong_usage_is_readable(evorl, tmp_path, arguments, says):
    code, out, err = evorl(*arguments)
    assert_one_error(code, out, err)
    assert says in err
    assert "(see evorl " in err
    assert list(tmp_path.iterdir()) == []


def test_no_command_shows_the_help(evorl):
    code, out, err = evorl()
    assert code == 2
    assert "train" in out + err
    assert "schema" in out + err


def test_schema_is_the_shipped_one(evorl):
    code, out, err = evorl("schema")
    assert (code, err) == (0, "")
    shipped = ROOT / "configs" / "evorl.schema.json"
    assert json.loads(out) == json.loads(shipped.read_text())


def test_version():
    found = CliRunner().invoke(cli, ["--version"])
    assert (found.exit_code, found.output.strip()) == (0, f"evorl, version {__version__}")


@pytest.mark.parametrize("whom", ["the process", "the terminal's whole group"])
def test_control_c_ends_with_one_line_and_no_children(tmp_path, whom):
    command = [sys.executable, "-m", "evorl", "train", str(CARTPOLE), *TINY]
    command += ["env.backend=async", "env.num_envs=1", "budget.env_steps=100000000"]
    command += ["compile=false"]  # which so many steps would otherwise be worth
    process = subprocess.Popen(
        command,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        metrics = tmp_path / "runs" / "cartpole" / "metrics.jsonl"
        wait_for(lambda: metrics.exists() or process.poll() is not None)
        assert process.poll() is None, process.communicate()
        children = psutil.Process(process.pid).children(recursive=True)
        assert len(children) >= 4  # two agents, each with one environment to learn in, one to play
        if whom == "the process":
            process.send_signal(signal.SIGINT)
        else:
            os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    assert process.returncode == 130
    assert out.startswith("environments: ")
    # No bar where there is no terminal. Click first ends the line with ^C in it.
    assert err == "\ninterrupted; resume with evorl resume runs/cartpole\n"
    wait_for(lambda: not any(child.is_running() for child in children), seconds=5)


LINEAGE = """\
family: CartPole-v1, held-out mean 450.0 (95 % interval 445.0 to 455.0)
agent 4, the best: confirmed fitness 398.5 in generation 4, after 5,000 own training steps

generations  id  mutation         what changed                                   fitness ± error
          0   0  initial          64-64 relu, lr 0.001, gamma 0.99,                0.0 ± 1.0
                                  batch_size 64
          1   2  hyperparameters  lr 0.001 → 0.00125, batch_size 64 → 128        201.0 ± 1.0
        2–3   3  architecture     hidden 64-64 → 64-96                   302.0 → 303.0 ± 1.0
          4   4  hyperparameters  gamma 0.99 → 0.995                             404.0 ± 1.0
"""


def squeezed(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_lineage(evorl, tmp_path):
    make_family_run(tmp_path)
    code, out, err = evorl("lineage", "family")
    assert (code, err) == (0, "")
    assert squeezed(out)[:4] == squeezed(LINEAGE)[:4]
    assert squeezed(out)[-3:] == squeezed(LINEAGE)[-3:]
    assert max(map(len, out.splitlines())) <= 100
    rows = out.splitlines()[4:]
    assert len({row.index(" ± ") for row in rows if " ± " in row}) == 1  # aligned


def test_lineage_for_scripts(evorl, tmp_path):
    make_family_run(tmp_path)
    code, out, err = evorl("lineage", "family", "--json")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert (told["path"], told["own_steps"]) == ("family", 5000)
    assert [(one["id"], one["generations"]) for one in told["ancestors"]] == [
        (0, [0, 0]),
        (2, [1, 1]),
        (3, [2, 3]),
        (4, [4, 4]),
    ]
    assert told["ancestors"][2]["fitness"] == [302.0, 303.0]
    assert told["ancestors"][2]["change"] == "hidden 64-64 → 64-96"


def test_lineage_of_another_agent(evorl, tmp_path):
    make_family_run(tmp_path)
    code, out, _ = evorl("lineage", "family", "--agent", 0)
    assert code == 0
    assert "agent 0, 5,000 own training steps" in out
    assert squeezed(out)[-1] == "0–4 0 initial 64-64 relu 0.0 → 4.0 ± 1.0"
    code, out, err = evorl("lineage", "family", "--agent", 5)
    assert_one_error(code, out, err)
    assert "no agent 5 in its lineage; ids go from 0 to 4" in err


def test_lineage_of_a_run_that_goes_on(evorl, tmp_path):
    directory = make_family_run(tmp_path)
    (directory.path / "summary.json").unlink()
    directory.append_lineage([evaluated(0, 5, -float("inf")), evaluated(4, 5, 7.0)])
    with (directory.path / "lineage.jsonl").open("a") as file:
        file.write('{"event": "birth", "gener')
    code, out, _ = evorl("lineage", "family")
    assert code == 0
    assert squeezed(out)[0] == "family: CartPole-v1, not finished"
    assert squeezed(out)[-1].startswith("4 4 hyperparameters")  # the best was saved in 4
    assert " → dead" in evorl("lineage", "family", "--agent", 0)[1]


def test_schedule(evorl, tmp_path):
    make_family_run(tmp_path)
    code, out, err = evorl("schedule", "family")
    assert (code, err) == (0, "")
    assert out.startswith("# The schedule of agent 4 of family: ")
    (tmp_path / "schedule.yaml").write_text(out)
    found = read_schedule(tmp_path / "schedule.yaml")
    assert (found.env, found.steps) == ("CartPole-v1", 5000)
    assert [part.step for part in found.segments] == [0, 1000, 4000]
    assert found.at(4500) == FAMILY[4].hyperparameters


def test_schedule_of_another_agent(evorl, tmp_path):
    make_family_run(tmp_path)
    _, out, _ = evorl("schedule", "family", "--agent", 2)
    assert "steps: 2000\n" in out
    assert out.count("{step: ") == 2


def test_schedule_of_a_run_that_followed_one(evorl, tmp_path):
    directory = make_family_run(tmp_path)
    (tmp_path / "schedule.yaml").write_text(evorl("schedule", "family")[1])
    directory.write_schedule(read_schedule(tmp_path / "schedule.yaml"))
    code, out, err = evorl("schedule", "family")
    assert_one_error(code, out, err)
    assert "followed a schedule itself" in err


def test_compare(evorl, tmp_path):
    for seed, score in enumerate([480.0, 490.0, 470.0]):
        make_run(tmp_path, f"a{seed}", score=score, seed=seed)
        make_run(tmp_path, f"b{seed}", score=score - 15, seed=seed, steps=(2000, 0), options=PLAIN)
    names = [f"{group}{seed}" for group in "ab" for seed in range(3)]
    code, out, err = evorl("compare", *names)
    assert (code, err) == (0, "")
    assert "evolution.method=evolution     3  480" in out
    assert squeezed(out)[4].startswith("X Y P(X > Y) 95 % interval environment")
    assert " 0.89 " in out  # 8 of 9
    assert out.splitlines()[-1].startswith("warning: CartPole-v1: one group had 82 % more")
    assert evorl("compare", *names)[1] == out


PLAIN = ["evolution.method=none"]
GONE = (
    "config.yaml",
    "lineage.jsonl",
    "summary.json",
    "best/agent.json",
    "best/weights.safetensors",  # which neither lineage nor schedule read
)


def _remove(name):
    return lambda run: (run / name).unlink()


def _cut(name):
    return lambda run: (run / name).write_bytes((run / name).read_bytes()[:20])


def _foreign(name):
    return lambda run: (run / name).write_bytes(b"\x00\xff hello\n\n")


def _to_file(run):
    shutil.rmtree(run)
    run.write_text("a file")


def _empty(run):
    shutil.rmtree(run)
    run.mkdir()


def _another_lineage(run):
    lines = (run / "lineage.jsonl").read_text().splitlines(keepends=True)
    (run / "lineage.jsonl").write_text("".join(lines[:2]))


BROKEN = {
    "missing": shutil.rmtree,
    "a file": _to_file,
    "empty": _empty,
    **{f"no {name}": _remove(name) for name in GONE},
    **{f"half of {name}": _cut(name) for name in GONE},
    **{f"foreign {name}": _foreign(name) for name in (*GONE, "schedule.yaml")},
    "without a best agent": lambda run: shutil.rmtree(run / "best"),
    "the lineage of another run": _another_lineage,
    "facts of another version": lambda run: RunDirectory(run).save_best(saved(own_steps="many")),
}
ANCESTRY = ("config.yaml", "lineage.jsonl", "without", "agent.json", "another run", "facts")
READS = {  # what spoils each command, by a part of its name
    "lineage": (*ANCESTRY, "half of summary.json", "foreign summary.json"),
    "schedule": (*ANCESTRY, "schedule.yaml"),
    "compare": ("config.yaml", "summary.json"),
}


@pytest.mark.parametrize("command", READS)
@pytest.mark.parametrize("kind", BROKEN)
def test_broken_run_directories_are_one_line_and_stay(evorl, tmp_path, command, kind):
    make_family_run(tmp_path)
    BROKEN[kind](tmp_path / "family")
    before = everything_in(tmp_path)
    code, out, err = evorl(command, "family")
    fatal = kind in ("missing", "a file", "empty") or any(name in kind for name in READS[command])
    if fatal:
        assert_one_error(code, out, err)
        assert "family" in err
    else:
        assert (code, err) == (0, "")
    assert everything_in(tmp_path) == before


@pytest.mark.parametrize("command", READS)
@pytest.mark.parametrize("name", ["a\nb", "", "x" * 5000, "nothing/family"])
def test_strange_run_directories(evorl, command, name):
    assert_one_error(*evorl(command, name))


@pytest.fixture
def trainings(monkeypatch):
    """A trainer that only remembers what it was asked for."""
    asked = []

    def train(config, *, console, schedule=None, resume=None):
        asked.append((config, schedule))
        value = 100.0 + config.seed
        score = Estimate(value, value - 1, value + 1)
        directory = RunDirectory.create(config.run.folder, config.name, config.run.if_exists)
        directory.write_config(dump_config(config))
        return types.SimpleNamespace(
            score=types.SimpleNamespace(mean=score, iqm=score, episodes=2), directory=directory.path
        )

    monkeypatch.setattr("evorl.training.train", train)
    return asked


@pytest.fixture
def replay(evorl, tmp_path, trainings):
    """Two files of which a schedule is replayed, and the arguments to do so."""
    make_family_run(tmp_path)
    (tmp_path / "schedule.yaml").write_text(evorl("schedule", "family")[1])
    (tmp_path / "run.yaml").write_text("name: again\nseed: 7\nreplay: {share: agent}\n" + GOOD)
    return ["train", "run.yaml", "--replay-schedule", "schedule.yaml"]


def test_replay_a_schedule(evorl, replay, trainings):
    code, out, err = evorl(*replay)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "seed 7: held-out score over 2 episodes: mean 107.0 (95 % interval 106.0 to 108.0),"
        " IQM 107.0 (95 % interval 106.0 to 108.0)",
        "best agent, metrics and summary: runs/again-seed7",
    ]
    ((config, schedule),) = trainings
    assert schedule == read_schedule("schedule.yaml")
    assert (config.population.size, config.evolution.method) == (1, "none")
    assert (config.budget.env_steps, config.seed) == (5000, 7)


def test_replay_may_end_early(evorl, replay, trainings):
    assert evorl(*replay, "budget.stop_at=450")[0] == 0
    ((config, _),) = trainings
    given = config.budget.model_dump(exclude_none=True)
    assert given == {"env_steps": 5000, "counts": "training", "stop_at": 450}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--replay-schedule", "nothing.yaml"], "nothing.yaml: cannot be read: no such file"),
        (["--replay-schedule", "."], "is a directory"),
        (["--replay-schedule", "run.yaml"], "run.yaml: name: unknown key"),
        (["--replay-schedule", "schedule.yaml", "env.id=Acrobot-v1"], "is for CartPole-v1"),
        (["--replay-schedule", "schedule.yaml", "--resume", "auto"], "--resume: not with"),
        (["--replay-schedule", "schedule.yaml", "algorithm.lr=1"], "algorithm.lr: is fixed by the"),
        (["--replay-schedule", "schedule.yaml", "algorithm.lrr=1"], "did you mean lr?"),
    ],
)
def test_what_cannot_be_replayed(evorl, replay, trainings, tmp_path, arguments, says):
    before = sorted(tmp_path.rglob("*"))
    code, out, err = evorl(*replay[:2], *arguments)
    assert_one_error(code, out, err)
    assert says in err
    assert trainings == []
    assert sorted(tmp_path.rglob("*")) == before


def test_plain_training_has_no_schedule(evorl, replay, trainings):
    code, out, _ = evorl("train", "run.yaml")
    assert code == 0
    assert out.startswith("held-out score over 2 episodes: mean 107.0 ")
    same = {"env": {"id": "CartPole-v1"}, "budget": {"env_steps": 100}}
    own = {"name": "again", "seed": 7, "replay": {"share": "agent"}}
    assert trainings == [(parse_config(same | own), None)]


def test_from_evolution_to_a_replayed_schedule(evorl, tmp_path):
    """All of it, with a trainer that trains."""
    options = ["budget.env_steps=1000", "algorithm.target_period=500"]
    code, out, err = evorl("train", CARTPOLE, *TINY, *options, "-q")
    assert code == 0, err
    assert "algorithm.target_period=500 has no effect" in err
    code, out, err = evorl("lineage", "runs/cartpole")
    assert code == 0, err
    assert out.startswith("runs/cartpole: CartPole-v1, held-out mean ")
    code, out, err = evorl("schedule", "runs/cartpole")
    assert code == 0, err
    (tmp_path / "schedule.yaml").write_text(out)
    steps = read_schedule(tmp_path / "schedule.yaml").steps
    fixed = ("population.size", "algorithm.batch_size", "budget.env_steps")
    free = [option for option in TINY if not option.startswith(fixed)]
    code, out, err = evorl("train", CARTPOLE, *free, "-q", "--replay-schedule", "schedule.yaml")
    assert code == 0, err
    assert "has no effect" not in err  # the schedule has that number, and not the user
    run = "runs/cartpole-seed1"
    assert json.loads((tmp_path / run / "summary.json").read_text())["env_steps"] >= steps
    code, out, err = evorl("compare", "runs/cartpole", run)
    assert code == 0, err
    assert "evolution.method=none" in out


@pytest.fixture
def interrupted(monkeypatch):
    """A trainer that is interrupted, before or after it has made the run's folder."""

    def set_up(begins):
        def train(config, console, schedule=None, resume=None):
            if begins:
                made = RunDirectory.create(config.run.folder, config.name, config.run.if_exists)
                with made.locked():
                    raise KeyboardInterrupt
            raise KeyboardInterrupt

        monkeypatch.setattr("evorl.training.train", train)

    return set_up


def test_an_interruption_says_how_to_resume(evorl, tmp_path, interrupted):
    (tmp_path / "run.yaml").write_text(GOOD + "run: {if_exists: number}\n")
    interrupted(begins=True)
    for name in ("run", "run-2"):
        code, out, err = evorl("train", "run.yaml")
        assert (code, out) == (130, "")
        assert err.strip() == f"interrupted; resume with evorl resume runs/{name}"
    interrupted(begins=False)
    assert evorl("train", "run.yaml")[2].strip() == "interrupted"


def test_an_interrupted_launch_says_how_to_resume(evorl, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("evorl.training.train_on_ray", interrupt)
    code, out, err = evorl("launch", CARTPOLE, "--on", "ray", "--ranks", 1)
    assert (code, out) == (130, "")
    assert err.strip() == "interrupted; the same command resumes the run"


def test_only_users_modules_come_from_the_current_folder(evorl, tmp_path, monkeypatch):
    """And after all others: a numpy.py there is nobody's numpy."""
    (tmp_path / "runs").mkdir()
    sys.path[:] = [path for path in sys.path if path]
    monkeypatch.setattr("evorl.config.registry._beside", [""])
    assert evorl("runs")[0] == 0
    assert "" not in sys.path
    (tmp_path / "besides.py").write_text("import gymnasium\n")
    assert evorl("init", "besides:CartPole-v1")[0] == 0
    assert sys.path[-1] == ""


def test_python_m_evorl_imports_nothing_from_the_current_folder(tmp_path):
    (tmp_path / "runs").mkdir()
    for name in ("numpy", "torch", "rich", "click", "yaml"):
        (tmp_path / f"{name}.py").write_text("open('executed', 'w')\nraise SystemExit(7)\n")
    words = [sys.executable, "-m", "evorl", "runs"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == "runs: no runs here; make one with evorl train CONFIG\n", done.stderr
    assert not (tmp_path / "executed").exists()
