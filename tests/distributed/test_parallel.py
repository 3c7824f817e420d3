"""Parallel.runner: processes that a launcher started or that it starts itself, and what they say.

peers.py and tutorial.py are what the processes run.
"""

import json
import os
import re
from pathlib import Path

import pytest

from evorl import Parallel, Task
from evorl.distributed.labels import VARIABLE
from evorl.distributed.parallel import current_session
from evorl.errors import ConfigError

from .peers import CHECKS
from .runs import Run
from .tutorial import STOP

HERE = Path(__file__).parent
LABELS = {VARIABLE: "gpu;1=evaluator;2-3=collector"}


def peers(folder, workers, topology, case, *, launched=True, **options):
    """Run a case; (exit code, output)."""
    run = Run(
        folder,
        *(workers, topology, case, folder),
        ranks=workers if launched else 1,
        script=HERE / "peers.py",
        environment=LABELS,
        **options,
    )
    return run.wait()


def said(folder, name):
    return [path.read_text() for path in sorted(folder.glob(f"{name}.*"))]


# Launched: as under accelerate launch. Started: by Parallel.runner itself.
@pytest.fixture(
    scope="module",
    params=[(2, "star", True), (4, "star", False), (3, "mesh", True), (1, "star", True)],
    ids=["star of 2 launched", "star of 4 started", "mesh of 3 launched", "alone"],
)
def checked(request, tmp_path_factory):
    workers, topology, launched = request.param
    folder = tmp_path_factory.mktemp("checked")
    code, output = peers(folder, workers, topology, "checks", launched=launched)
    assert code == 0, output
    return folder, workers


@pytest.mark.parametrize("check", CHECKS)
def test_processes(checked, check):
    folder, workers = checked
    if workers > 1 or check == "check_labels":
        assert said(folder, check) == ["ok"] * workers


def test_finish_ends_all_within_a_second(checked):
    folder, workers = checked
    for finishing in range(workers if workers > 1 else 0):
        ended = [float(text) for text in said(folder, f"ended-{finishing}")]
        assert len(ended) == workers
        assert max(ended) - min(ended) < 1


def test_no_thread_of_a_task_is_left(checked):
    folder, workers = checked
    assert said(folder, "threads") == ["['MainThread']"] * workers


@pytest.mark.parametrize("topology", ["star", "mesh"])
def test_one_that_comes_late_sees_that_all_is_over(tmp_path, topology):
    code, output = peers(tmp_path, 3, topology, "late")
    assert code == 0, output
    assert float(said(tmp_path, "finished")[2]) < 1  # seconds


def test_collectives_in_a_stage_of_some_ranks_are_refused_at_once(tmp_path):
    code, output = peers(tmp_path, 2, "star", "collectives")
    assert code == 0, output
    count, message = said(tmp_path, "refused")[0].split(maxsplit=1)
    assert int(count) == 2 * 4 * 9  # modes, stages, collectives
    assert message.startswith("World.gather: stage 'inside' has filter_labels, so that some of")
    assert said(tmp_path, "refused")[1].split() == ["0"]


def test_teams_meet_in_stages_of_their_own_and_no_others(tmp_path):
    code, output = peers(tmp_path, 3, "star", "teams")
    assert code == 0, output
    main, second, evaluator = said(tmp_path, "teams")
    assert main.startswith(
        "2 2 World.average_: stage 'inside' has filter_labels, so that some of those with the label"
        " trainer or learner never come here"
    )
    assert main.endswith("use the stage with filter_labels=['trainer']")
    assert second.split()[:2] == ["2", "2"]
    assert evaluator.split() == ["1", "0"]


@pytest.mark.parametrize("launched", [True, False])
def test_an_error_on_one_ends_all_and_names_its_stage(tmp_path, launched):
    code, output = peers(tmp_path, 2, "star", "fails", launched=launched)
    assert code == 1
    assert "ValueError: broken on purpose\nin stage 'fails', iteration 0\n" in output
    if not launched:
        assert output.splitlines()[-1] == (
            "evorl.errors.RunError: Parallel.runner: rank 1 failed with exit code 1; look for its"
            " error above"
        )


@pytest.mark.parametrize(("workers", "expected"), [(2, 0), (3, 1)])
def test_an_exit_counts_as_it_does_of_a_script(tmp_path, workers, expected):
    code, output = peers(tmp_path, workers, "star", "exits", launched=False)
    assert code == expected, output
    assert ("ended by 2" in output) == (workers > 2)


def test_waiting_in_vain_is_an_error_that_says_for_what(tmp_path):
    code, output = peers(tmp_path, 2, "star", "waits")
    assert code == 1
    said = "RunError: task.wait: waited 0.2 s for x of the others (rank 1 shared nothing yet); look"
    assert said in output


def test_other_workers_than_were_launched_are_refused(tmp_path):
    run = Run(tmp_path, *(3, "star", "checks", tmp_path), ranks=2, script=HERE / "peers.py")
    code, output = run.wait()
    assert code == 1
    refusal = "ConfigError: n_parallel_workers: 3, but 2 were launched; start as many, or none"
    assert refusal in output


def test_malformed_labels_are_refused_before_anything_starts(monkeypatch):
    monkeypatch.setenv(VARIABLE, "1=")
    with pytest.raises(ConfigError, match=r"^EVORL_LABELS: expected entries .* got '1='$"):
        Parallel.runner(n_parallel_workers=2)(lambda: None)
    with pytest.raises(ConfigError, match=r"^EVORL_LABELS: expected entries .* got '1='$"):
        Task()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_parallel_workers": 0}, "n_parallel_workers: expected a whole number from 1 on, got 0"),
        ({"n_parallel_workers": 2, "topology": "ring"}, "topology: expected star or mesh, got"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        Parallel.runner(**options)


def test_one_worker_is_this_process_and_gets_what_main_returns():
    def main(word, times=1):
        assert current_session() is None
        with Task() as task:
            assert not task.router.is_active
            assert task.parallel_ctx.get("anything") is None
            assert task.parallel_ctx.ranks == ()
        return os.getpid(), word * times

    assert Parallel.runner(1)(main, "x", times=3) == (os.getpid(), "xxx")


CLOSURE = """
import sys, torch, evorl

torch.set_num_threads(2)
matrix = torch.randn(800, 800, requires_grad=True)
(matrix @ matrix).sum().backward()  # so that OpenMP has threads, which a fork does not copy
print("printed once")


def make(word):
    def main(*others):
        loss = (matrix @ matrix).relu().sum()
        loss.backward()
        with evorl.Task() as task:
            task.use(lambda ctx: print(word, *others, sorted(task.labels)[-1], flush=True))
            task.run(max_step=1)

    return main


evorl.Parallel.runner(n_parallel_workers=2)(make("a closure"), 3)
print("and after it")
"""


def test_a_closure_runs_on_processes_of_a_parent_that_has_computed(tmp_path):
    script = tmp_path / "closure.py"
    script.write_text(CLOSURE)
    code, output = Run(tmp_path, script=script).wait()
    assert code == 0, output
    lines = [line for line in output.splitlines() if "Warning" not in line]
    assert lines[0] == "printed once"
    assert sorted(lines[1:3]) == ["a closure 3 node.0", "a closure 3 node.1"]
    assert lines[3:] == ["and after it"]


# The tutorial.


def tutorial(folder, workers, mode, *, launched=False, real=False):
    run = Run(
        folder,
        *(workers, mode, folder),
        ranks=workers if launched else 1,
        script=HERE / "tutorial.py",
        real=real,
    )
    code, output = run.wait()
    assert code == 0, output
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(workers)]
    return found, output


@pytest.mark.parametrize("mode", ["serial", "async"])
def test_the_tutorial_in_one_process(tmp_path, mode):
    (only,), output = tutorial(tmp_path, 1, mode)
    assert {"standalone", "node.0", "main"} <= set(only["labels"])
    assert ("async" in only["labels"]) == (mode == "async")
    assert not only["active"]
    *earlier, (_, envstep, reward) = only["seen"]
    if mode == "async" and earlier[-1][2] > STOP:  # another one was due just before it finished
        earlier.pop()
    assert reward > STOP >= max(each[2] for each in earlier)
    assert only["saved_at"] == only["trained"]  # train ran after evaluate had finished
    assert envstep == 32 * (only["iterations"] - 1)
    assert output.count("  evaluate ") == output.count("  train ") >= 1  # StepTimer's tables


@pytest.mark.parametrize("mode", ["serial", "async"])
@pytest.mark.parametrize(("workers", "launched"), [(2, True), (2, False), (3, False)])
def test_the_tutorial_on_processes(tmp_path, workers, launched, mode):
    (trainer, evaluator, *others), output = tutorial(tmp_path, workers, mode, launched=launched)
    check_tutorial(trainer, evaluator, output)
    for rank, other in enumerate(others, 2):
        assert {"distributed", f"node.{rank}"} <= set(other["labels"])
        assert other["seen"] == []


@pytest.mark.slow
@pytest.mark.parametrize("launched", [False, True], ids=["python", "accelerate launch"])
def test_the_tutorial_as_a_user_starts_it(tmp_path, launched):
    (trainer, evaluator), output = tutorial(tmp_path, 2, "serial", launched=launched, real=True)
    check_tutorial(trainer, evaluator, output)


def check_tutorial(trainer, evaluator, output):
    assert trainer["active"]
    assert {"distributed", "node.0", "main"} <= set(trainer["labels"])
    assert {"distributed", "node.1"} <= set(evaluator["labels"])
    assert trainer["seen"] == []
    assert evaluator["trained"] == 0
    train_iters = [each[0] for each in evaluator["seen"]]
    assert train_iters == sorted(set(train_iters))  # only newer ones
    for train_iter, envstep, _ in evaluator["seen"]:  # of one moment: two updates every 32 steps
        assert envstep == 32 * (train_iter + 1) // 2
    assert evaluator["seen"][-1][2] > STOP
    assert evaluator["finish"]
    assert trainer["saved_at"] == trainer["trained"]  # it was told of the end while it could act
    assert "  train " in output
    assert "  evaluate " not in output  # the main rank alone prints


def test_the_demo_on_two_processes(tmp_path):
    script = tmp_path / "short.py"
    script.write_text(
        "import runpy, evorl\n"
        f"demo = runpy.run_path({str(HERE.parents[1] / 'demos' / 'demo_task.py')!r})\n"
        "evorl.Parallel.runner(n_parallel_workers=2)(demo['main'], 'parallel', 6)\n"
    )
    code, output = Run(tmp_path, script=script).wait()
    assert code == 0, output
    seen = [
        int(text.split(":")[0].split()[-1]) for text in output.splitlines() if "returns" in text
    ]
    assert seen == sorted(set(seen))
    assert seen[-1] == 5  # the last weights, too
    assert "  collect " in output
    assert "  evaluate " not in output


def test_the_code_of_the_page_runs(tmp_path):
    page = (HERE.parents[1] / "docs" / "task.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    script = tmp_path / "page.py"
    script.write_text("\n\n".join(blocks))
    code, output = Run(tmp_path, script=script).wait()
    assert code == 0, output
    assert output.startswith("iteration 100: 100 in ")
    assert "  evaluate " in output
