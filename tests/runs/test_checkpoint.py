"""Checkpoints: the same bits again, or one line that says why not; never something else."""

import errno
import hashlib
import json
import os
import pickle
import random
import resource
import shutil
import warnings
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from safetensors.torch import save as plain_save

from evorl.errors import CheckpointError
from evorl.runs.checkpoint import Checkpoints, Draft, digest, serialise

torch.set_num_threads(1)

RUN = "cafe"


@pytest.fixture(autouse=True, scope="module")
def quick_disk():
    """No test cuts the power, so none has to wait for the disk."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


def some_tensors(seed):
    generator = torch.Generator().manual_seed(seed)
    return {
        "pixels": torch.randint(0, 256, (3, 5), dtype=torch.uint8, generator=generator),
        "steps": torch.tensor([seed, -(2**62)]),
        "theta": torch.randn(4, 6, generator=generator),
        "nothing": torch.empty(0, 3),
        "scalar": torch.tensor(seed / 3, dtype=torch.float64),
        "done": torch.tensor([True, False]),
        "half": torch.randn(3, generator=generator).bfloat16(),
    }


def more_tensors(seed):
    return {"theta": torch.full((4, 6), float(seed))}


def some_state(seed):
    return {"seed": seed, "rng": 2**127 + seed, "fitness": [0.1 + seed, -0.0, 5e-324, None]}


def save(checkpoints, generation, seed=None):
    seed = generation if seed is None else seed
    draft = checkpoints.begin(generation)
    files = [draft.write("agents", some_tensors(seed)), draft.write("replay", more_tensors(seed))]
    return draft.commit(some_state(seed), files)


def same(left, right):
    return (
        left.keys() == right.keys()
        and all(left[name].dtype == right[name].dtype for name in left)
        and all(torch.equal(left[name], right[name]) for name in left)
    )


def is_whole(checkpoint):
    """Whether everything in it belongs to the seed that its state names."""
    seed = checkpoint.state["seed"]
    return (
        checkpoint.state == some_state(seed)
        and list(checkpoint.files) == ["agents", "replay"]
        and same(checkpoint.load("agents"), some_tensors(seed))
        and same(checkpoint.load("replay"), more_tensors(seed))
    )


def newest(folder, run=RUN):
    """The newest one, which must be whole, and the warnings on the way to it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = Checkpoints(folder, run).newest()
    assert found is None or is_whole(found)
    own = [warning for warning in caught if warning.category is UserWarning]  # not of what is freed
    return found, [str(warning.message) for warning in own]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def good_generations(folder):
    """All generations that can be resumed from, found by hiding the newest again and again."""
    copy = folder.with_name("hidden")
    shutil.copytree(folder, copy, copy_function=os.link)  # only names are removed
    generations = set()
    while any(copy.iterdir()):
        try:
            found, _ = newest(copy)
        except CheckpointError:
            break
        if found is None:
            break
        generations.add(found.generation)
        shutil.rmtree(found.path)
    shutil.rmtree(copy)
    return generations


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    folder = tmp_path_factory.mktemp("template") / "checkpoints"
    for generation in (4, 5):
        save(Checkpoints(folder, RUN), generation)
    return folder


@pytest.fixture
def folder(template, tmp_path):
    """Generations 4 and 5."""
    return Path(shutil.copytree(template, tmp_path / "checkpoints"))


def seal(facts):
    """A manifest as a forger would write it: whatever it says, with the right checksum."""
    facts = {key: value for key, value in facts.items() if key != "sha256"}
    checksum = hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    return json.dumps({**facts, "sha256": checksum}).encode()


def forge(path, **changes):
    manifest = path / "manifest.json"
    manifest.write_bytes(seal({**json.loads(manifest.read_bytes()), **changes}))


# What is written is read.


def test_round_trip(tmp_path):
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints", RUN)
    assert checkpoints.newest() is None
    path = save(checkpoints, 5)
    assert path == tmp_path / "run" / "checkpoints" / "generation-000005"
    assert names(path) == ["agents.safetensors", "manifest.json", "replay.safetensors"]
    found, caught = newest(checkpoints.folder)
    assert (found.path, found.generation, caught) == (path, 5, [])
    loaded = found.load("agents")
    loaded["theta"] += 1  # it owns its memory
    assert same(found.load("agents"), some_tensors(5))


def test_what_is_loaded_is_written_to_the_same_bytes(tmp_path, folder):
    found, _ = newest(folder)
    checkpoints = Checkpoints(tmp_path / "other", RUN)
    draft = checkpoints.begin(5)
    files = [Draft(draft.path).write(stem, found.load(stem)) for stem in found.files]
    draft.commit(found.state, files)
    assert contents(checkpoints.folder) == contents(folder, "generation-000005")


def contents(folder, name="*"):
    return {
        path.relative_to(folder): path.read_bytes()
        for top in folder.glob(name)
        for path in top.iterdir()
    }


def test_the_same_content_gives_the_same_bytes(tmp_path, folder):
    save(Checkpoints(tmp_path / "again", RUN), 4)
    checkpoints = Checkpoints(tmp_path / "again", RUN)
    draft = checkpoints.begin(5)
    backwards = dict(reversed(some_tensors(5).items()))
    files = [draft.write("replay", more_tensors(5)), draft.write("agents", backwards)]
    draft.commit(some_state(5), files)
    assert contents(checkpoints.folder) == contents(folder)


def test_a_state_keeps_its_order(tmp_path):
    checkpoints = Checkpoints(tmp_path, RUN)
    checkpoints.begin(1).commit({"b": 1, "a": {"d": 2, "c": 3}}, [])
    assert repr(checkpoints.newest().state) == "{'b': 1, 'a': {'d': 2, 'c': 3}}"


def test_views_and_gradients_are_saved_as_what_they_show():
    whole = torch.arange(12.0).reshape(3, 4)
    views = {"a": whole, "b": whole[1:], "c": whole.T, "d": whole.clone().requires_grad_()}
    copies = {name: view.detach().clone().contiguous() for name, view in views.items()}
    assert serialise(views) == serialise(copies) == plain_save(copies)
    assert digest(views) == digest(copies)


def test_a_digest_is_of_names_types_shapes_and_bits():
    one = {"a": torch.zeros(2, 3), "b": torch.ones(1)}
    others = [
        {"a": torch.zeros(2, 3), "c": torch.ones(1)},
        {"a": torch.zeros(3, 2), "b": torch.ones(1)},
        {"a": torch.zeros(2, 3, dtype=torch.int32), "b": torch.ones(1)},
        {"a": -torch.zeros(2, 3), "b": torch.ones(1)},
        {"a": torch.zeros(2, 3)},
        {},
    ]
    assert len({digest(tensors) for tensors in (one, *others)}) == 1 + len(others)
    assert digest(one) == digest(dict(reversed(one.items())))
    assert digest(some_tensors(1)) == digest(some_tensors(1)) != digest(some_tensors(2))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.dictionaries(st.text(), JSON, max_size=3))
def test_a_state_comes_back_exactly_or_is_refused(tmp_path, state):
    checkpoints = Checkpoints(tmp_path, RUN, keep=1)
    draft = checkpoints.begin(1)
    try:
        draft.commit(state, [])
    except CheckpointError:  # not a number, or infinite
        assert "nan" in repr(state) or "inf" in repr(state)
        assert not list(tmp_path.glob("*.new"))
    else:
        assert repr(checkpoints.newest().state) == repr(json.loads(json.dumps(state)))


def test_json_makes_lists_of_tuples_and_text_of_keys(tmp_path):
    checkpoints = Checkpoints(tmp_path, RUN)
    checkpoints.begin(1).commit({"hidden": (8, 5), "age": dict.fromkeys(range(12), 0)}, [])
    state = checkpoints.newest().state
    assert state == {"hidden": [8, 5], "age": {str(key): 0 for key in range(12)}}


@pytest.mark.parametrize("state", [{"a": float("nan")}, {"a": {1}}])
def test_a_state_that_json_cannot_hold_is_refused(folder, state):
    draft = Checkpoints(folder, RUN).begin(6)
    with pytest.raises(CheckpointError, match="generation-000006: cannot be written: "):
        draft.commit(state, [])
    assert names(folder) == ["generation-000004", "generation-000005"]


# What is damaged is refused, and the one before it taken.


def truncate(path, rng):
    victim = rng.choice(sorted(path.iterdir()))
    victim.write_bytes(victim.read_bytes()[: rng.randrange(victim.stat().st_size)])


def flip(path, rng):
    victim = rng.choice(sorted(path.iterdir()))
    data = bytearray(victim.read_bytes())
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    victim.write_bytes(data)


def lengthen(path, rng):
    victim = rng.choice(sorted(path.iterdir()))
    victim.write_bytes(victim.read_bytes() + rng.choice([b"\0", b"\n", b" ", b"{}"]))


def delete(path, rng):
    rng.choice(sorted(path.iterdir())).unlink()


def scramble(path, rng):
    victim = rng.choice(sorted(path.iterdir()))
    victim.write_bytes(rng.randbytes(victim.stat().st_size))


def swap(path, rng):
    """Two files of it, or one with the same file of the checkpoint before."""
    other = path.with_name("generation-000004") if rng.random() < 0.7 else path
    left = rng.choice(sorted(path.iterdir()))
    right = rng.choice([name for name in sorted(other.iterdir()) if name != left])
    left_data, right_data = left.read_bytes(), right.read_bytes()
    left.write_bytes(right_data)
    if other == path:
        right.write_bytes(left_data)


def unpacked(path, rng):
    shutil.rmtree(path)
    path.write_text("a file")


RANDOM = [truncate, flip, lengthen, delete, scramble, swap, unpacked]


@pytest.mark.parametrize("seed", range(120))
def test_after_any_damage_the_one_before_is_taken(folder, seed):
    RANDOM[seed % len(RANDOM)](folder / "generation-000005", random.Random(seed))
    found, caught = newest(folder)
    assert found.generation == 4
    (text,) = caught
    assert text.startswith(str(folder / "generation-000005"))
    assert text.endswith("; the one before is taken: generation-000004")
    assert "\n" not in text


def test_no_byte_of_a_manifest_can_change(folder):
    manifest = folder / "generation-000005" / "manifest.json"
    data = manifest.read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place in range(0, len(data), 3):
            manifest.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
            assert Checkpoints(folder, RUN).newest().generation == 4


def raw(text):
    return lambda path: (path / "manifest.json").write_bytes(text)


def forged(**changes):
    return lambda path: forge(path, **changes)


def forged_files(**changes):
    def change(path):
        files = json.loads((path / "manifest.json").read_bytes())["files"]
        forge(path, files=files | changes)

    return change


def twice(path):
    """A key twice: parsers differ on which of them they take."""
    manifest = path / "manifest.json"
    text = manifest.read_bytes()
    manifest.write_bytes(b'{"best": true, ' + text[1:])


WRONG = {  # what was done, and what the warning must say of it
    "version": (forged(format=1), "format version 1 wrote it, this is version 5"),
    "other version, other shape": (raw(b'{"format": 7, "x": []}'), "format version 7 wrote it"),
    "run": (forged(run="beef"), "its run has configuration 'beef', this 'cafe'"),
    "generation": (forged(generation=4), "it is of generation 4"),
    "state NaN": (forged(state={"a": float("nan")}), "is no finite number"),
    "state infinite": (forged(state={"a": float("-inf")}), "is no finite number"),
    "files": (forged(files=7), "cannot be used"),
    "key twice": (twice, "checksum is another"),
    "stem missing": (forged_files(other="0"), "other.safetensors: cannot be used: No such file"),
    "checksum": (forged_files(agents="0" * 64), "its checksum is another"),
    "empty": (raw(b""), "cannot be used"),
    "list": (raw(b"[]"), "cannot be used"),
    "null": (raw(b"null"), "cannot be used"),
    "nesting": (raw(b"[" * 1_000_000), "maximum recursion depth"),
    "long number": (raw(b'{"format": ' + b"9" * 100_000 + b"}"), "cannot be used"),
    "not UTF-8": (raw(b'{"format": "\xff"}'), "cannot be used"),
    "surrogate": (raw(b'{"format": 5, "run": "\\ud800"}'), "checksum is another"),
}


@pytest.mark.parametrize(("damage", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_manifest_is_refused_with_the_reason(folder, damage, message):
    damage(folder / "generation-000005")
    found, (text,) = newest(folder)
    assert found.generation == 4
    assert message in text


def test_each_damaged_one_has_its_warning(folder):
    checkpoints = Checkpoints(folder, RUN, keep=5)
    save(checkpoints, 6)
    save(checkpoints, 7)
    (folder / "generation-000005" / "manifest.json").unlink()
    (folder / "generation-000006" / "agents.safetensors").write_bytes(b"")
    forge(folder / "generation-000007", format=9)
    found, caught = newest(folder)
    assert found.generation == 4
    assert ["000007" in caught[0], "000006" in caught[1], "000005" in caught[2]] == [True] * 3
    assert len(caught) == 3


def test_none_good_is_an_error(folder):
    with pytest.raises(CheckpointError, match=r"no checkpoint there can be used; .*-000005/"):
        Checkpoints(folder, "beef").newest()
    for path in folder.iterdir():
        flip(path, random.Random(0))
    with pytest.raises(CheckpointError, match="no checkpoint there can be used"):
        newest(folder)


def test_other_names_are_nobody_s_business(folder):
    for name in ("notes", "generation-7", "generation-000009.bak", "generation-000009.new"):
        (folder / name).mkdir()
    found, caught = newest(folder)
    assert (found.generation, caught) == (5, [])


def test_a_folder_that_is_none(tmp_path):
    (tmp_path / "file").write_text("")
    assert Checkpoints(tmp_path / "file", RUN).newest() is None
    with pytest.raises(CheckpointError, match="cannot be written: Not a directory"):
        Checkpoints(tmp_path / "file", RUN).begin(1)


def test_a_change_after_the_verification_is_seen(folder):
    found, _ = newest(folder)
    shutil.copy(folder / "generation-000004" / "agents.safetensors", found.path)
    with pytest.raises(CheckpointError, match=r"agents\.safetensors: .*checksum"):
        found.load("agents")
    with pytest.raises(CheckpointError, match=r"agent\.safetensors: cannot be used"):
        found.load("agent")


# Nothing executes.


class Bomb:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def pickled(marker):
    return pickle.dumps(Bomb(marker))


def torch_saved(marker):
    path = marker.with_name("saved")
    torch.save(Bomb(marker), path)
    return path.read_bytes()


@pytest.mark.parametrize("make", [pickled, torch_saved])
def test_a_pickle_is_never_executed(folder, tmp_path, make):
    marker = tmp_path / "exploded"
    data = make(marker)
    path = folder / "generation-000005"
    (path / "agents.safetensors").write_bytes(data)
    assert newest(folder)[0].generation == 4
    forged_files(agents=hashlib.sha256(data).hexdigest())(path)
    found, (text,) = newest(folder)  # now only the parser stands in its way
    assert found.generation == 4
    assert "agents.safetensors: cannot be used: " in text
    raw(data)(path)
    assert newest(folder)[0].generation == 4
    assert not marker.exists()
    pickle.loads(pickled(marker))  # or this would have been a test of nothing
    assert marker.exists()


def test_a_header_with_a_right_checksum_can_still_be_wrong(folder):
    headers = [
        b'{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]}}',  # a type that torch lacks
        b'{"a":{"dtype":"F32","shape":[18446744073709551615,2],"data_offsets":[0,1]}}',
        b'{"a":{"dtype":"F32","shape":[0,9223372036854775807],"data_offsets":[0,0]}}',
        b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,400]}}',
        b'{"a":' * 100_000,
    ]
    for header in headers:
        data = len(header).to_bytes(8, "little") + header + b"\0"
        (folder / "generation-000005" / "agents.safetensors").write_bytes(data)
        forged_files(agents=hashlib.sha256(data).hexdigest())(folder / "generation-000005")
        found, (text,) = newest(folder)
        assert found.generation == 4
        assert "agents.safetensors: cannot be used" in text


# A disk that is full, and a run that is killed.


def test_a_file_too_large_for_the_disk(folder):
    """A limit of the system in place of a full disk: the write itself fails, halfway."""
    draft = Checkpoints(folder, RUN).begin(6)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(CheckpointError, match="generation-000006: cannot be written: File too"):
            draft.write("replay", {"large": torch.zeros(1_000_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert names(folder) == ["generation-000004", "generation-000005"]
    assert newest(folder)[0].generation == 5


class Killed(BaseException):
    """Nobody catches it, as nobody catches a SIGKILL."""


CALLS = ("mkdir", "open", "fsync", "close", "rename", "unlink", "rmdir")


def fail_at(patch, number, error):
    """Make one of the calls that change the disk raise instead, and count them."""
    count = [0]

    def wrap(owner, name, halfway=None):
        original = getattr(owner, name)

        def call(*arguments, **options):
            count[0] += 1
            if count[0] == number:
                if halfway is not None:
                    halfway(original, *arguments)
                raise error
            return original(*arguments, **options)

        patch.setattr(owner, name, call)

    for name in CALLS:
        wrap(os, name)
    wrap(Path, "write_bytes", lambda write, path, data: write(path, data[: len(data) // 2]))
    return count


def go_on(folder):
    save(Checkpoints(folder, RUN), 6)


def go_on_after_a_kill(folder):  # a draft is left
    go_on(folder)


def keep_one(folder):
    save(Checkpoints(folder, RUN, keep=1), 6)


SAVES = {  # the number that can be resumed from at any moment, and the names afterwards
    go_on: (2, ["generation-000005", "generation-000006"]),
    go_on_after_a_kill: (2, ["generation-000005", "generation-000006"]),
    keep_one: (1, ["generation-000006"]),
}


def prepared(template, folder, saving):
    shutil.copytree(template, folder)
    if saving is go_on_after_a_kill:
        shutil.copytree(folder / "generation-000005", folder / "generation-000006.new")
    return folder


def run_with(saving, folder, number, error):
    """Whether it came to its end although one call raised; None if there is no such call."""
    ended = False
    with pytest.MonkeyPatch.context() as patch:
        count = fail_at(patch, number, error)
        try:
            saving(folder)
            ended = True
        except (Killed, CheckpointError):
            pass
    return None if count[0] < number else ended


@pytest.mark.parametrize("saving", SAVES)
def test_killed_at_any_call_no_good_checkpoint_is_lost(template, tmp_path, saving):
    fewest, after = SAVES[saving]
    for number in range(1, 200):
        folder = prepared(template, tmp_path / "checkpoints", saving)
        ended = run_with(saving, folder, number, Killed())
        found, caught = newest(folder)  # it is whole, and nothing half removed is in its way
        assert found.generation >= 5
        assert caught == []
        assert len(good_generations(folder)) >= fewest
        if ended is None:
            assert names(folder) == after
            break
        assert not ended
        saving_again = keep_one if saving is keep_one else go_on
        saving_again(folder)
        assert newest(folder)[0].generation == 6
        assert len(names(folder)) == fewest
        shutil.rmtree(folder)
    assert number > 20  # or the calls were not counted


def test_killed_while_a_damaged_one_is_replaced_there_is_the_one_before(template, tmp_path):
    for number in range(1, 200):
        folder = prepared(template, tmp_path / "checkpoints", go_on)
        scramble_agents(folder / "generation-000005")
        ended = run_with(lambda at: save(Checkpoints(at, RUN), 5), folder, number, Killed())
        assert newest(folder)[0].generation >= 4
        if ended is None:
            break
        save(Checkpoints(folder, RUN), 5)
        assert newest(folder)[1] == []
        assert names(folder) == ["generation-000004", "generation-000005"]
        shutil.rmtree(folder)
    assert number > 20


@pytest.mark.parametrize("saving", SAVES)
def test_a_full_disk_at_any_call_leaves_no_draft(template, tmp_path, saving):
    failed = 0
    for number in range(1, 200):
        folder = prepared(template, tmp_path / "checkpoints", saving)
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        ended = run_with(saving, folder, number, error)
        found, caught = newest(folder)
        assert found.generation >= 5
        assert caught == []
        if ended is None:
            break
        if not ended:
            failed += 1
            assert not list(folder.glob("*.new"))
            assert len(good_generations(folder)) == 2 + (found.generation == 6)
        shutil.rmtree(folder)
    assert failed > 10


@pytest.mark.parametrize("function", ["fsync", "rename"])
def test_a_full_disk_is_told_in_one_line(folder, monkeypatch, function):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    before = contents(folder)
    monkeypatch.setattr(os, function, full)
    expected = "generation-000006: cannot be written: No space left on device$"
    with pytest.raises(CheckpointError, match=expected):
        save(Checkpoints(folder, RUN), 6)
    assert contents(folder) == before
    assert names(folder) == ["generation-000004", "generation-000005"]


def test_all_is_on_the_disk_before_it_counts(folder, monkeypatch):
    """Against a power cut, which can lose what was not synced, in any order."""
    events = []
    sync, rename = os.fsync, os.rename

    def watch_sync(descriptor):
        events.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")))
        sync(descriptor)

    def watch_rename(source, target):
        events.append(f"{Path(source).name} → {Path(target).name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", watch_sync)
    monkeypatch.setattr(os, "rename", watch_rename)
    go_on(folder)
    draft = folder / "generation-000006.new"
    names = ("agents.safetensors", "replay.safetensors", "manifest.json")
    together = {draft, folder.parent, *(draft / name for name in names)}
    assert set(events[:5]) == together
    assert events[5:] == [
        "generation-000006.new → generation-000006",
        folder,
        "generation-000004 → generation-000004.new",
    ]


def test_leftovers_are_cleaned(folder):
    checkpoints = Checkpoints(folder, RUN)
    checkpoints.begin(6).write("agents", more_tensors(6))
    (folder / "mine.new").mkdir()
    checkpoints.begin(7)
    expected = ["generation-000004", "generation-000005", "generation-000007.new", "mine.new"]
    assert names(folder) == expected


def test_a_new_draft_is_empty(folder):
    checkpoints = Checkpoints(folder, RUN)
    checkpoints.begin(6).write("stale", more_tensors(6))
    save(checkpoints, 6)
    assert list(newest(folder)[0].files) == ["agents", "replay"]


# What stays.


def scramble_agents(path):
    """A damage that only the checksum of the file tells."""
    victim = path / "agents.safetensors"
    victim.write_bytes(victim.read_bytes()[:-1] + b"?")


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_newest_stay(tmp_path, keep):
    checkpoints = Checkpoints(tmp_path, RUN, keep)
    for generation in range(1, 6):
        save(checkpoints, generation)
        first = max(1, generation - keep + 1)
        expected = [f"generation-00000{k}" for k in range(first, generation + 1)]
        assert names(tmp_path) == expected


def test_a_damaged_one_is_replaced_when_it_is_redone(folder):
    scramble_agents(folder / "generation-000005")
    checkpoints = Checkpoints(folder, RUN)
    with pytest.warns(UserWarning, match="the one before is taken"):
        checkpoints.newest()
    save(checkpoints, 5)
    assert names(folder) == ["generation-000004", "generation-000005"]
    assert newest(folder)[1] == []
    save(checkpoints, 6)
    assert names(folder) == ["generation-000005", "generation-000006"]


def test_the_one_just_committed_stays_below_a_damaged_later_one(folder):
    """Resumed from 3 after 4 and 5 were refused: they have the higher numbers, but are not it."""
    for path in folder.iterdir():
        scramble_agents(path)
    checkpoints = Checkpoints(folder, RUN, keep=1)
    save(checkpoints, 3)
    found, caught = newest(folder)
    assert (found.generation, len(caught)) == (3, 2)


def test_those_of_another_run_are_left_alone(folder):
    save(Checkpoints(folder, "beef", keep=1), 6)
    assert names(folder) == [f"generation-00000{number}" for number in (4, 5, 6)]
