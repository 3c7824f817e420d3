"""Real ranks, each launch of which runs many checks: a launch costs several seconds."""

import pytest

from .launching import free_port, launch, launch_machines
from .worlds import CHECKS

pytestmark = pytest.mark.slow

ONE_PORT = ("--main_process_port", 0)  # any that is free


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        return launch(tmp_path_factory.mktemp("two"), "two", *ONE_PORT)


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return launch(tmp_path_factory.mktemp("four"), "four", "--num_processes", 4, *ONE_PORT)


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    shared = ("--main_process_ip", "127.0.0.1", "--main_process_port", free_port())
    options = [("--num_processes", 2, "--machine_rank", i, *shared) for i in range(2)]
    return launch_machines(tmp_path_factory.mktemp("machines"), "nodes", options, "multi_node")


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
@pytest.mark.parametrize("mesh", ["2x1", "1x2"])
def test_two_ranks(two, mesh, check):
    assert two.said(f"{mesh}-{check}") == dict.fromkeys(range(2), "ok")


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
@pytest.mark.parametrize("mesh", ["4x1", "2x2", "1x4"])
def test_four_ranks(four, mesh, check):
    assert four.said(f"{mesh}-{check}") == dict.fromkeys(range(4), "ok")


@pytest.mark.parametrize("check", [check.__name__ for check in CHECKS])
def test_two_machines(machines, check):
    assert machines[0].said(f"2x1-{check}") == dict.fromkeys(range(2), "ok")


def test_teams_speak_among_themselves(four):
    """Two ranks train the same agents, and two evaluate."""
    for rank, said in four.said("teams").items():
        first = rank // 2 * 2
        names = [f"rank {one}" for one in (first, first + 1)]
        labels = [["main", "trainer"], ["trainer"], ["evaluator"], ["evaluator"]][rank]
        everyone = names if rank == first else []
        mean = [0.5, 0.5] if rank < 2 else [float(rank)] * 2
        told = [labels, names, names[0], everyone, first == 2, True, [0, 1, 2, 3, 4], mean]
        assert said == str(told)


REFUSALS = {
    "population": "mesh: population 3 × data 1 takes 3 ranks, got 2; start as many with",
    "data": "mesh: population 1 × data 3 takes 3 ranks, got 2; start as many with",
    "agents": "mesh.population: every rank along it needs an agent, got 2 ranks for 1; start fewer",
    "text": "WORLD_SIZE: expected a whole number from 1 on, got 'two'; start with accelerate",
    "nothing": "WORLD_SIZE: expected a whole number from 1 on, got ''; start with accelerate",
    "zero": "WORLD_SIZE: expected a whole number from 1 on, got '0'; start with accelerate",
    "more": "mesh: population 2 × data 1 takes 2 ranks, got 3; start as many with",
    "port": "WORLD_SIZE: got 2, but no MASTER_PORT; start with accelerate launch",
}


@pytest.mark.parametrize("name", REFUSALS)
def test_all_ranks_refuse_alike(two, name):
    said = two.said(f"refused-{name}")
    assert said[0] == said[1]
    assert said[0].startswith(f"ConfigError: {REFUSALS[name]}")
    assert "\n" not in said[0]


def test_a_rank_that_ends_is_heard_while_the_others_wait_for_it(four):
    assert four.code == 1
    errors = [line for line in four.output.splitlines() if line.startswith("error: ")]
    # on a busy machine the main rank may have to say in the end that it lost another one, too
    assert "error: only rank 3 has this to say" in errors, four.output
    assert all("rank 3" in line or "Ranks 3" in line for line in errors), four.output
    assert four.said("closed") == {3: "False"}
    closed = "RuntimeError: a World was closed in this process: its ranks cannot meet again"
    assert four.said("again") == {3: closed}


def test_an_error_of_all_ranks_is_printed_once(tmp_path):
    done = launch(tmp_path, "refused", *ONE_PORT)
    assert done.code == 1
    errors = [line for line in done.output.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, done.output
    line = "WORLD_SIZE: 2 ranks were launched, but Accelerate counts 1; make no Accelerator before"
    assert errors[0].startswith(f"error: {line}")
    assert done.said("refused") == dict.fromkeys(range(2), errors[0].removeprefix("error: "))


ADVICE = "look for an error above, and start the run again"


def test_ranks_that_do_not_come_are_named(four):
    """On the main rank, by the barrier; late ones find nobody there."""
    said, lost = four.said("late"), "RunError: the end of generation 7: rank {} lost another one ("
    for rank in range(4):
        assert said[rank].startswith(lost.format(rank))
        assert said[rank].endswith(f"); {ADVICE}")
    assert "Ranks 1, 3 failed to pass" in said[0]


def test_a_collective_gives_up_after_the_time_out(four):
    said = four.said("late-average")
    assert set(said) == {0, 1, 3}
    for rank, line in said.items():
        assert line.startswith(f"RunError: all-reduce: rank {rank} lost one with the same agents (")
        assert line.endswith(f"); {ADVICE}")
        assert "\n" not in line


STUCK = {
    "broadcast": "broadcast from rank 0: rank 0 lost another one (",
    "any_rank": "any_rank: rank 0 lost another one (",
    "gather": "receive: rank 0 lost rank 1 (",
    "send": "send: rank 0 lost rank 1 (",
    "average": "all-reduce: rank 0 lost one with the same agents (",
    "barrier": "the end: rank 0 lost another one ([Rank 0]: Ranks 1 failed to pass",
    # the barrier says who, unless gloo has seen before that the connection is closed
    "killed-barrier": "the end: rank 0 lost another one (",
    "killed-gather": "receive: rank 0 lost rank 1 (",
}


@pytest.mark.parametrize("way", STUCK)
def test_a_rank_that_is_stuck_or_dead_ends_the_wait_wherever_the_other_is(two, way):
    line = two.said(way)[0]
    assert line.startswith(f"RunError: {STUCK[way]}"), line
    assert line.endswith(f"); {ADVICE}")


def test_a_killed_rank_takes_the_job_down(two):
    assert two.code == 1
    assert "SIGKILL" in two.output
    assert two.seconds < 60  # its time-out, which nobody waits for


def test_a_rank_killed_on_another_machine_is_noticed(machines):
    assert [machine.code for machine in machines] == [1, 1]
    assert machines[0].said("lost")[0].startswith("RunError: receive: rank 0 lost rank 1 (")


def test_the_main_rank_reads_for_all(two):
    assert two.said("read") == dict.fromkeys(range(2), "read by rank 0")


def test_the_launcher_sets_one_thread_where_the_user_did_not(two):
    assert two.said("threads") == dict.fromkeys(range(2), "1, given: False, ranks: 2")
