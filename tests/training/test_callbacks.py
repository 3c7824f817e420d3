"""A user's own code in a run: what it sees, how it stops the run, and what its errors do."""

import json
import subprocess
import sys
import textwrap
import warnings
from types import SimpleNamespace

import numpy as np
import pytest

import evorl
from evorl.errors import RunError
from evorl.runs.directory import RunDirectory
from evorl.runs.reopening import reopen
from tests.distributed.launching import CONFIGS
from tests.training.test_saving import CONFIG, checkpoints, content


class Diary(evorl.Callback):
    """Notes what happens, and may stop the run or fail at one moment of it."""

    def __init__(self, at=(), stop=False, fail=False):
        self.at, self.stop, self.fail = at, stop, fail
        self.seen, self.events = [], []

    def note(self, hook, event):
        self.seen.append((hook, event.generation))
        self.events.append(event)
        if (hook, event.generation) == self.at:
            if self.fail:
                raise ValueError("no\nmore")
            event.stop()

    def on_generation_begin(self, event):
        self.note("begin", event)

    def on_evaluated(self, event):
        self.note("evaluated", event)

    def on_evolved(self, event):
        self.note("evolved", event)

    def on_checkpoint(self, event):
        self.note("checkpoint", event)

    def on_run_end(self, event):
        self.note("end", event)


def run(folder, diary, *overrides):
    return evorl.train(CONFIG, [f"run.folder={folder}", *overrides], [diary])


def resumed(folder, *overrides):
    directory = RunDirectory(folder / "run")
    return evorl.train(reopen(directory, overrides), resume=directory)


def generation(number):
    return [(hook, number) for hook in ("begin", "evaluated", "evolved", "checkpoint")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of four generations, with what its diary says."""
    diary, folder = Diary(), tmp_path_factory.mktemp("whole")
    return run(folder, diary), diary


def test_every_moment_in_its_order(whole):
    result, diary = whole
    last = [("begin", 3), ("evaluated", 3), ("checkpoint", 3), ("end", 3)]  # nobody evolves
    assert diary.seen == [*generation(0), *generation(1), *generation(2), *last]
    lines = [json.loads(line) for line in (result.directory / "metrics.jsonl").open()]
    moments = zip(diary.seen, diary.events, strict=True)
    found = [event for (hook, _), event in moments if hook == "evaluated"]
    for line, event in zip(lines, found, strict=True):
        assert event.env_steps == line["env_steps"]
        assert event.fitness.tolist() == line["fitness"] == event.returns.mean(1).tolist()
        assert [genome.id for genome in event.genomes] == line["ids"]
        assert event.best_score == line["best"]
        assert event.directory == result.directory
    assert np.isnan(diary.events[0].fitness).all()  # nobody has played yet


def test_fitness_is_that_of_the_genome_beside_it(whole):
    known, children = {}, 0
    for (hook, _), event in zip(whole[1].seen, whole[1].events, strict=True):
        if hook == "evaluated":
            known = {g.id: row for g, row in zip(event.genomes, event.returns, strict=True)}
        for genome, fitness, returns in zip(
            event.genomes, event.fitness, event.returns, strict=True
        ):
            own = known.get(genome.id, np.array(np.nan))  # a child has not played yet
            children += hook == "evolved" and genome.id not in known
            np.testing.assert_array_equal(returns, np.broadcast_to(own, returns.shape))
            np.testing.assert_array_equal(fitness, own.mean())
    assert children


def test_nothing_can_be_changed(whole):
    event = whole[1].events[1]
    for array in (event.fitness, event.returns):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(AttributeError):
        event.env_steps = 0


def test_watching_changes_no_byte(whole, tmp_path):
    plain = evorl.train(CONFIG, [f"run.folder={tmp_path}"])
    assert content(RunDirectory(plain.directory)) == content(RunDirectory(whole[0].directory))


@pytest.mark.parametrize("moment", ["begin", "evaluated", "evolved", "checkpoint"])
def test_a_callback_stops_the_run_and_more_to_spend_continues_it(whole, tmp_path, moment):
    diary = Diary((moment, 1), stop=True)
    result = run(tmp_path, diary)
    assert [own for _, own in diary.seen][-1] == 1
    assert diary.seen[-1] == ("end", 1)
    directory = RunDirectory(result.directory)
    assert checkpoints(directory)[-1] == "generation-000002"
    assert directory.finished
    with pytest.raises(RunError, match="the run is finished"):
        resumed(tmp_path)
    resumed(tmp_path, "budget.env_steps=404")  # another budget, and three generations to go
    ours, theirs = (
        (path / "lineage.jsonl").read_text().splitlines()
        for path in (directory.path, whole[0].directory)
    )
    assert ours[: len(theirs)] == theirs  # as if it had never been stopped


@pytest.mark.parametrize("moment", ["begin", "evaluated", "evolved", "checkpoint"])
def test_an_error_is_named_and_the_run_can_be_resumed(whole, tmp_path, moment):
    with pytest.raises(RunError) as caught:
        run(tmp_path, Diary((moment, 2), fail=True))
    hook = f"on_{'generation_begin' if moment == 'begin' else moment}"
    assert str(caught.value) == (
        f"{tmp_path / 'run'}: callback Diary.{hook} failed: ValueError: no\\nmore;"
        " fix it, and resume the run"
    )
    assert isinstance(caught.value.__cause__, ValueError)
    result = resumed(tmp_path)
    assert content(RunDirectory(result.directory)) == content(RunDirectory(whole[0].directory))


def test_what_a_run_returns(whole, monkeypatch):
    result, _ = whole
    monkeypatch.setitem(sys.modules, "pandas", None)  # as if it were not installed
    assert result.score.episodes == 2
    assert [row["generation"] for row in result.metrics] == [0, 1, 2, 3]
    assert {row["event"] for row in result.lineage} == {"birth", "fitness"}
    assert len(result.lineage) == len((result.directory / "lineage.jsonl").open().readlines())


def test_with_pandas_rows_are_a_data_frame(whole, monkeypatch):
    """By a stand-in: pandas itself is no dependency."""
    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=tuple))
    result, _ = whole
    assert [type(result.metrics), type(result.lineage)] == [tuple, tuple]
    assert [row["generation"] for row in result.metrics] == [0, 1, 2, 3]


SCRIPT = """
    import sys
    import evorl

    class Mine(evorl.Callback):
        def on_evaluated(self, event):
            print("called", event.generation, flush=True)
            if event.generation == 1 and sys.argv[1] == "fails":
                raise KeyError("that")
            if event.generation == 1:
                event.stop()

    if __name__ == "__main__":
        config = {config}
        with evorl.one_line_errors():
            result = evorl.train(config, ["run.folder=" + sys.argv[2]], [Mine()])
            print("result", result and result.score.episodes, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("what", ["fails", "stops"])
def test_on_two_ranks(tmp_path, what):
    (tmp_path / "mine.py").write_text(textwrap.dedent(SCRIPT).replace("{config}", repr(CONFIG)))
    command = [sys.executable, "-m", "accelerate.commands.launch", "--config_file"]
    command += [str(CONFIGS / "cpu.yaml"), "--main_process_port", "0"]
    done = subprocess.run(
        [*command, str(tmp_path / "mine.py"), what, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert done.stdout.splitlines()[:2] == ["called 0", "called 1"]  # on the main rank only
    if what == "stops":
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()[2:]) == ["result 2", "result None"]
        assert (tmp_path / "run" / "summary.json").exists()
        return
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    why = "callback Mine.on_evaluated failed: KeyError: 'that'; fix it, and resume the run"
    # first; on a busy machine the other rank may have time to say whom it lost
    assert said[:1] == [f"error: {tmp_path / 'run'}: {why}"]
    assert (tmp_path / "run" / "checkpoints" / "generation-000001").exists()


def test_a_fitness_of_ones_own(tmp_path):
    """It is what selection and the champion go by, and what is written down."""
    diary = Diary()
    own = "evaluation.fitness=tests.training.parts:lowest"
    with warnings.catch_warnings(action="error"):
        result = run(tmp_path, diary, own, "evaluation.confirm_episodes=3")
    for (hook, _), event in zip(diary.seen, diary.events, strict=True):
        if hook == "evaluated":
            assert event.fitness.tolist() == event.returns.min(1).tolist()
            assert event.best_score == int(event.best_score)  # one episode's, and no mean
    lines = [json.loads(line) for line in (result.directory / "metrics.jsonl").open()]
    assert len({tuple(line["fitness"]) for line in lines}) > 1
