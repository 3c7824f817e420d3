"""Who descends from whom: a family with known ancestors, and files that are no lineage."""

import json
import math
import subprocess
import sys

import pytest

from evorl.errors import RunError
from evorl.evolution.lineage import birth, read_lineage
from evorl.genome import Architecture, Genome
from evorl.runs.directory import RunDirectory
from tests.synthetic import FAMILY, STEPS, child, evaluated, family_lines, initial


def write(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def family(tmp_path):
    return read_lineage(write(tmp_path / "lineage.jsonl", family_lines()))


def test_the_lines():
    lines = family_lines()
    assert {key: value for key, value in lines[4].items() if key != "genome"} == {
        "event": "birth",
        "generation": 1,
        "place": 1,
        "change": "lr 0.001 → 0.00125, batch_size 64 → 128",
        "copied": None,
    }
    assert lines[4]["genome"] == FAMILY[2].to_json()
    assert lines[2] == {
        "event": "fitness",
        "generation": 0,
        "env_steps": 4000,
        "own_steps": 1000,
        "place": 0,
        "id": 0,
        "fitness": 0.0,
        "error": 1.0,
    }
    assert lines[0]["change"] == "initial"


def test_births_come_back_as_they_were(family):
    assert {id: born.genome for id, born in family.births.items()} == FAMILY
    assert family.births[3].change == "hidden 64-64 → 64-96"


def test_through_the_run_directory(tmp_path):
    directory = RunDirectory.create(tmp_path, "a")
    lines = family_lines()
    directory.append_lineage(lines[:3])
    directory.append_lineage([])
    directory.append_lineage(lines[3:])
    text = (tmp_path / "a" / "lineage.jsonl").read_text()
    assert text == write(tmp_path / "expected", lines).read_text()
    assert directory.lineage() == read_lineage(tmp_path / "expected")


def test_ancestry(family):
    found = family.ancestry(4)
    assert [one.genome for one in found] == [FAMILY[0], FAMILY[2], FAMILY[3], FAMILY[4]]
    assert [one.generations for one in found] == [range(1), range(1, 2), range(2, 4), range(4, 5)]
    assert [one.own_steps for one in found] == [0, STEPS, 2 * STEPS, 4 * STEPS]
    assert [one.end_steps for one in found] == [STEPS, 2 * STEPS, 4 * STEPS, 5 * STEPS]
    # agent 0 lived on, but that is no part of this line
    assert [[line.fitness for line in one.fitness] for one in found] == [
        [0.0],
        [201.0],
        [302.0, 303.0],
        [404.0],
    ]


def test_ancestry_of_a_survivor_is_itself(family):
    (alone,) = family.ancestry(0)
    assert (alone.generations, alone.own_steps, alone.end_steps) == (range(5), 0, 5 * STEPS)


def test_ancestry_up_to_a_generation(family):
    assert family.ancestry(0, until=2)[-1].generations == range(3)
    assert [line.generation for line in family.ancestry(3, until=2)[-1].fitness] == [2]


def test_ancestry_of_nobody(family):
    with pytest.raises(KeyError):
        family.ancestry(99)


def test_own_steps_are_those_of_the_line(tmp_path):
    """Not of the generation: agents of unlike speed take unlike steps."""
    parent = initial(0)
    after = child(parent, 1, 2)
    lines = [birth(parent, 0, None), evaluated(0, 0, own_steps=70), evaluated(0, 1, own_steps=150)]
    lines += [birth(after, 1, parent), evaluated(1, 2, own_steps=230)]
    found = read_lineage(write(tmp_path / "a", lines)).ancestry(1)
    assert [(one.own_steps, one.end_steps) for one in found] == [(0, 150), (150, 230)]


def test_a_newborn_has_no_fitness_yet(tmp_path):
    parent = initial(0)
    lines = [birth(parent, 0, None), evaluated(0, 0), birth(child(parent, 1, 1), 0, parent)]
    found = read_lineage(write(tmp_path / "a", lines)).ancestry(1)
    assert (found[1].fitness, found[1].own_steps, found[1].end_steps) == ([], STEPS, STEPS)
    assert found[1].generations == range(1, 1)


def test_a_dead_agent(tmp_path):
    line = evaluated(0, 0, fitness=-math.inf, error=math.nan)
    assert (line["fitness"], line["error"]) == (None, None)
    lineage = read_lineage(write(tmp_path / "a", [birth(initial(0), 0, None), line]))
    assert lineage.fitness[0][0].fitness is None


def test_a_line_that_is_cut_off_anywhere_is_left_out(tmp_path):
    lines = family_lines()
    path = write(tmp_path / "lineage.jsonl", lines)
    whole = path.read_bytes()
    less = read_lineage(write(tmp_path / "less", lines[:-1]))
    last = len(json.dumps(lines[-1])) + 1
    for cut in range(1, last + 1):
        path.write_bytes(whole[:-cut])
        assert read_lineage(path) == less


def assert_refused(path, says):
    with pytest.raises(RunError) as caught:
        read_lineage(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert says in message
    assert "\n" not in message


FOREIGN = {
    "empty": b"",
    "one line of text": b"hello\n",
    "text without an end": b"hello",
    "binary": bytes(range(256)) * 4 + b"\n",
    "an empty line": b"\n",
    "another mapping": b'{"event": "birth"}\n',
    "an unknown event": b'{"event": "death", "id": 3}\n',
    "a list": b"[]\n",
    "deeply nested": b"[" * 100_000 + b"\n",
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_foreign_files(tmp_path, kind):
    (tmp_path / "lineage.jsonl").write_bytes(FOREIGN[kind])
    assert_refused(
        tmp_path / "lineage.jsonl", "line 1: " if b"\n" in FOREIGN[kind] else "no births"
    )


def test_no_file(tmp_path):
    assert_refused(tmp_path / "lineage.jsonl", "no such file")
    (tmp_path / "lineage.jsonl").mkdir()
    assert_refused(tmp_path / "lineage.jsonl", "is a directory")


def _genome(line, **changes):
    return line | {"genome": line["genome"] | changes}


@pytest.mark.parametrize(
    ("line", "spoil", "says"),
    [
        (0, lambda line: line | {"extra": 1}, "extra"),
        (0, lambda line: line | {"generation": 0.5}, "generation"),
        (0, lambda line: _genome(line, id="0"), "genome.id"),
        (0, lambda line: _genome(line, parent=77), "parent, 77, that is not there"),
        (0, lambda line: _genome(line, hyperparameters={"lr": "high"}), "hyperparameters"),
        (1, lambda line: _genome(line, id=0), "agent 0 is born twice"),
        (2, lambda line: line | {"id": 77}, "agent 77 has a fitness, but was never born"),
        (2, lambda line: line | {"fitness": "high"}, "fitness"),
        (2, lambda line: line | {"fitness": math.nan}, "fitness"),
    ],
)
def test_damaged_lines(tmp_path, line, spoil, says):
    lines = family_lines()
    lines[line] = spoil(lines[line])
    path = write(tmp_path / "lineage.jsonl", lines)
    assert_refused(path, f"line {line + 1}: ")
    assert_refused(path, says)


def test_reading_a_lineage_does_not_load_torch():
    code = (
        "import sys, evorl.evolution.lineage, evorl.evolution.schedule;"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_a_child_of_an_earlier_state_leaves_its_parent_then(tmp_path):
    """Agent 5 goes on from agent 0 as it was at the end of generation 1, born in 4."""
    lines = family_lines()
    late = child(FAMILY[0], 5, 4, lr=0.002)
    born = birth(late, 1, FAMILY[0], copied=1)
    path = tmp_path / "lineage.jsonl"
    after = [evaluated(5, 4, 7.0, own_steps=3 * STEPS)]
    found = read_lineage(write(path, [*lines, born, *after])).ancestry(5)
    assert [one.generations for one in found] == [range(0, 2), range(4, 5)]
    assert [(one.own_steps, one.end_steps) for one in found] == [
        (0, 2 * STEPS),
        (2 * STEPS, 3 * STEPS),
    ]


def test_effects_are_first_fitness_beside_the_parents_when_it_was_left(family):
    effects = {id: family.effect(born) for id, born in family.births.items()}
    assert effects[0] == (None, 0.0, None)
    assert effects[0].change is None
    assert effects[2] == (0.0, 201.0, 1.0)  # its parent had 1 in the same generation
    assert effects[3] == (201.0, 302.0, None)  # its parent was gone
    changes = {id: effect.change for id, effect in effects.items()}
    assert changes == {0: None, 1: None, 2: 201.0, 3: 101.0, 4: 101.0}


def test_several_networks(tmp_path):
    networks = {"actor": Architecture((32,)), "critic": Architecture((64, 64))}
    first = Genome(0, networks, {"actor_lr": 0.001})
    wider = networks | {"critic": Architecture((64, 96))}
    second = Genome(1, wider, {"actor_lr": 0.001}, 0, 1, "architecture")
    lines = [birth(first, 0, None), evaluated(0, 0), birth(second, 0, first)]
    assert lines[0]["genome"]["architectures"]["critic"]["hidden"] == (64, 64)
    found = read_lineage(write(tmp_path / "a", lines))
    assert {id: born.genome for id, born in found.births.items()} == {0: first, 1: second}
    assert found.births[1].change == "critic hidden 64-64 → 64-96"
