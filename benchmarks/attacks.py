"""Files that somebody has damaged, forged or made to break their reader; and processes killed.

    python benchmarks/attacks.py                        # all of them, an hour on two cores
    python benchmarks/attacks.py --only forged --count 50 --seed 7

damaged  200 checkpoints with other bytes, a file cut off, gone, a link or a pipe: what resumes has
         the same bytes from the checkpoint before, or ends in one line
forged   200 with another value in the manifest or another tensor, and right checksums
configs  1,000 files made of ours, and some made to multiply: each read or refused within a second
folders  50 poisoned runs beside good ones: listed as damaged or as they are, the others as before
kills    100 kills of all processes at random moments, over 1, 2 and 4 ranks: the same bytes at last

No attack may end in a traceback, in a hang, with another result in silence, or write outside of the
run's folder. Prints what does, with the seed that repeats it, and then exits with 1.
"""

import argparse
import contextlib
import hashlib
import importlib
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from poisons import POISONS, damage_file, fuzzed, mutate, resumed_from
from safetensors.torch import load, save

from evorl.cli import main as command
from evorl.config import dump_config, load_config, parse_config
from evorl.errors import ConfigError

ROOT = Path(__file__).parent.parent
COUNTS = {"damaged": 200, "forged": 200, "configs": 1000, "folders": 50, "kills": 100}
LIMIT, SOON = 300.0, 1.0  # seconds of a command, on a busy machine, too; and of a configuration
MEMORY = 16 * 2**30  # bytes of addresses that a command may have
RUN: dict[str, Any] = {
    "name": "run",
    "env": {"id": "CartPole-v1", "num_envs": 2, "backend": "sync"},
    "algorithm": {"learning_starts": 20, "batch_size": 8},
    "network": {"hidden": [8]},
    "replay": {"capacity": 200, "share": "agent", "kind": "prioritized"},
    "population": {"size": 2},
    "evaluation": {
        **{"every": 25, "episodes": 2, "confirm_episodes": 2, "final_episodes": 2},
        **{"max_steps": 30, "final_max_steps": 30},
    },
    "evolution": {"selection": {"min_gap": 0}},
    "budget": {"env_steps": 300},
    "checkpoint": {"keep": 3},
    "compile": False,
}


class Ended(NamedTuple):
    """How a command has ended."""

    code: int | None  # None: it was not done in time
    said: str

    @property
    def problem(self) -> str | None:
        """What must not be, if anything."""
        errors = [line for line in self.said.splitlines() if line.startswith("error: ")]
        if self.code is None:
            return "a hang"
        if "Traceback" in self.said:
            return "a traceback"
        if self.code not in (0, 2) or (self.code == 2) != (len(errors) == 1):
            return f"exit code {self.code} and {len(errors)} lines of errors"
        return None


def evorl(folder: Path, *words: object, limit: float = LIMIT) -> Ended:
    """A command in a process of its own, forked: all is imported already."""
    with tempfile.TemporaryFile() as output:
        fork = multiprocessing.get_context("fork")
        process = fork.Process(target=_be_command, args=(folder, words, output.fileno()))
        process.start()
        process.join(limit)
        code = process.exitcode
        if code is None:
            process.kill()
            process.join()
        output.seek(0)
        return Ended(code, output.read().decode(errors="replace"))


def _be_command(folder: Path, words: tuple[object, ...], output: int) -> None:
    os.dup2(output, 1)
    os.dup2(output, 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(folder)
    sys.argv, code = ["evorl", *map(str, words)], 0
    try:
        command()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


class Runs:
    """A small run that was stopped in its third generation, the last, and what it ends with."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.whole = folder, folder / "whole" / "run"
        (folder / "run.yaml").write_text(
            dump_config(parse_config(RUN, [f"run.folder={folder}/whole"]))
        )
        ended = evorl(folder, "train", "run.yaml")
        if ended.code != 0:
            raise SystemExit(f"the run to attack has failed:\n{ended.said}")
        self.expected = content(self.whole)
        self.stopped = Path(shutil.copytree(self.whole, folder / "stopped"))
        shutil.rmtree(self.stopped / "checkpoints" / "generation-000003")
        (self.stopped / "summary.json").unlink()

    def resumed(self, attack: Callable[[Path], object], name: str) -> tuple[Ended, Path]:
        """The run after an attack on a copy of it, which it must not leave."""
        parent = self.folder / name
        run = Path(shutil.copytree(self.stopped, parent / "runs" / "run"))
        folder = str(self.whole.parent)
        text = (run / "config.yaml").read_text().replace(folder, str(parent / "runs"))
        (run / "config.yaml").write_text(text)
        (parent / "outside").mkdir()
        attack(run)
        ended = evorl(parent, "resume", "runs/run")
        if any((parent / "outside").iterdir()) or {own.name for own in parent.iterdir()} != OWN:
            ended = Ended(1, f"written outside: {ended.said}")
        return ended, run


OWN = {"runs", "outside"}


def content(run: Path) -> dict[str, str]:
    """Hashes of all that does not depend on time; checkpoints that were there before aside."""
    newest = sorted((run / "checkpoints").glob("generation-" + "[0-9]" * 6))[-1:]
    files = [run / "lineage.jsonl", *(run / "best").iterdir(), *(newest[0].iterdir())]
    return {
        str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.is_file()
    }


def damaged(count: int, seed: int, folder: Path) -> Iterator[str]:
    """Bytes that nobody wrote."""
    runs = Runs(folder)
    for number in range(count):
        chance = random.Random(f"damaged {seed} {number}")
        what: list[str] = []

        def attack(run: Path, chance: random.Random = chance, what: list[str] = what) -> None:
            files = sorted(path for path in run.rglob("*") if path.name in resumed_from(run))
            what.append(damage_file(chance, chance.choice(files), run.parent.parent / "outside"))

        ended, run = runs.resumed(attack, f"damaged-{number}")
        problem = ended.problem
        if problem is None and ended.code == 0 and content(run) != runs.expected:
            problem = "other bytes, in silence"
        if problem:
            yield f"damaged {number}: {what[0]}: {problem}\n{ended.said}"
        shutil.rmtree(run.parent.parent)


def forged(count: int, seed: int, folder: Path) -> Iterator[str]:
    """Right checksums of other values; a value that could have been goes unnoticed."""
    runs = Runs(folder)
    for number in range(count):
        chance = random.Random(f"forged {seed} {number}")
        what: list[str] = []

        def attack(run: Path, chance: random.Random = chance, what: list[str] = what) -> None:
            newest = sorted((run / "checkpoints").iterdir())[-1]
            what.append(forge(chance, newest))

        ended, run = runs.resumed(attack, f"forged-{number}")
        if ended.problem:
            yield f"forged {number}: {what[0]}: {ended.problem}\n{ended.said}"
        shutil.rmtree(run.parent.parent)


def forge(chance: random.Random, checkpoint: Path) -> str:
    """Another value in the manifest, or another tensor in a file; what it was."""
    manifest = checkpoint / "manifest.json"
    facts = json.loads(manifest.read_bytes())
    if chance.random() < 0.6:
        what = mutate(chance, facts)
    else:
        stem = chance.choice(sorted(facts["files"]))
        path = checkpoint / f"{stem}.safetensors"
        tensors = load(path.read_bytes())
        name = chance.choice(sorted(tensors)) if tensors else "new"
        what = f"{stem}: {name} {other_tensor(chance, tensors, name)}"
        path.write_bytes(save(tensors))
        facts["files"][stem] = hashlib.sha256(path.read_bytes()).hexdigest()
    facts.pop("sha256", None)
    with contextlib.suppress(ValueError):  # what is no JSON stays unsealed
        checksum = hashlib.sha256(json.dumps(facts, allow_nan=False).encode())
        facts["sha256"] = checksum.hexdigest()
    manifest.write_text(json.dumps(facts))
    return what


def other_tensor(chance: random.Random, tensors: dict[str, torch.Tensor], name: str) -> str:
    """Put another tensor in the place of one."""
    old = tensors.get(name, torch.zeros(1))
    kind = chance.choice(["gone", "negative", "huge", "NaN", "shape", "longer", "type", "name"])
    whole = not (old.is_floating_point() or old.dtype == torch.bool)
    if kind == "gone" or not old.numel():
        tensors.pop(name, None)
    elif kind == "negative":
        tensors[name] = torch.full_like(old, -(2**62) if old.dtype == torch.int64 else 1)
    elif kind == "huge":
        most = torch.iinfo(old.dtype).max if whole else 1e30
        tensors[name] = torch.full_like(old, most if old.dtype != torch.bool else 1)
    elif kind == "NaN":
        tensors[name] = torch.full(old.shape, float("nan"))
    elif kind == "shape":
        tensors[name] = old.reshape(-1, *[1] * old.dim()).clone()
    elif kind == "longer":
        tensors[name] = torch.cat([old.reshape(-1)] * 3)
    elif kind == "type":
        tensors[name] = old.to(torch.float64 if whole else torch.int64)
    else:
        tensors[chance.choice(["../x", "9999.online.x", "context.", f"{name}.x"])] = old.clone()
    return kind


def configs(count: int, seed: int, folder: Path) -> Iterator[str]:
    """Texts that are nearly configurations, or much larger than they look."""
    given = [path.read_text() for path in sorted((ROOT / "configs").glob("*/*.yaml"))]
    path = folder / "config.yaml"
    load_config(ROOT / "configs" / "dqn" / "cartpole.yaml")  # all is imported from now on
    for number in range(count):
        chance = random.Random(f"configs {seed} {number}")
        path.write_bytes(text := fuzzed(chance, given))
        begin, problem = time.process_time(), None
        try:
            config = load_config(path)
            (folder / "again.yaml").write_text(dump_config(config))
            if load_config(folder / "again.yaml") != config:
                problem = "it is another one when it is read again"
        except ConfigError as error:
            if "\n" in str(error):
                problem = "more than one line"
        except BaseException:
            problem = traceback.format_exc()
        if (took := time.process_time() - begin) > SOON:
            problem = f"{took:.1f} s"
        if problem:
            yield f"configs {number}: {problem}\n{text[:500]!r}"


def folders(count: int, seed: int, folder: Path) -> Iterator[str]:
    """One run of a folder is poisoned; every command that reads it is called."""
    runs = Runs(folder)
    for number in range(count):
        chance = random.Random(f"folders {seed} {number}")
        parent = folder / f"folders-{number}"
        for name in ("good", "bad"):
            shutil.copytree(runs.whole, parent / "runs" / name)
        (parent / "outside").mkdir()
        name, poison = list(POISONS.items())[number % len(POISONS)]
        poison(chance, parent / "runs" / "bad", parent / "outside")
        listed = evorl(parent, "runs", "--json")
        found = {}
        if listed.code == 0:
            found = {Path(run["path"]).name: run["state"] for run in json.loads(listed.said)}
        problem = listed.problem or ("" if found.get("good") == "finished" else "good is missing")
        said = listed.said
        for words in (
            ("report", "runs/bad", "-o", "bad.html"),
            ("report", "runs/bad", "runs/good", "-o", "both.html"),
            ("compare", "runs/bad", "runs/good"),
            ("lineage", "runs/bad"),
            ("schedule", "runs/bad"),
            ("evaluate", "runs/bad", "--episodes", 1),
            ("resume", "runs/bad", f"run.folder={parent / 'runs'}"),
        ):
            if not problem:
                ended = evorl(parent, *words)
                problem, said = ended.problem, f"{words[0]}: {ended.said}"
        if any((parent / "outside").iterdir()):
            problem = "written outside"
        if problem:
            yield f"folders {number}: {name}: {problem}\n{said}"
        shutil.rmtree(parent)


def kills(count: int, seed: int, folder: Path) -> Iterator[str]:
    """All processes of a run are killed again and again, wherever they are."""
    sys.path.append(str(ROOT))
    from tests.distributed.runs import Run, configured, deterministic, some_time, train

    for ranks, share in ((1, count // 3), (2, count // 3), (4, count - 2 * (count // 3))):
        expected = deterministic(train(folder / f"whole-{ranks}", ranks=ranks))
        chance, done, tries = random.Random(f"kills {seed} {ranks}"), 0, 0
        while done < share:
            own, tries = folder / f"killed-{ranks}-{tries}", tries + 1
            directory = own / "runs" / "run"
            run = Run(own, "train", configured(own), ranks=ranks)
            while done < share and some_time(chance, run, directory):
                run.kill()
                run.launcher.wait()
                done += 1
                begun = (directory / "config.yaml").exists()
                words = ("resume", "runs/run") if begun else ("train", configured(own))
                run = Run(own, *words, ranks=ranks)
            code, said = run.wait()
            if code != 0 and "the run is finished" not in said:
                yield f"kills over {ranks} ranks: exit code {code}\n{said}"
            elif deterministic(directory) != expected:
                yield f"kills over {ranks} ranks: other bytes\n{said}"


CASES = {case.__name__: case for case in (damaged, forged, configs, folders, kills)}


def main() -> None:
    """Attack, print what must not be, and judge."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=CASES, nargs="+", help="some of them")
    parser.add_argument("--count", type=int, help="of each, instead of those above")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for module in ("evorl.training.trainer", "evorl.shipping.play", "evorl.reporting.run_data"):
        importlib.import_module(module)  # once, and not in each process
    failed = 0
    for name in options.only or CASES:
        count = options.count or COUNTS[name]
        with tempfile.TemporaryDirectory(prefix="attacks-") as folder:
            problems = 0
            for problem in CASES[name](count, options.seed, Path(folder)):
                print(problem, flush=True)
                problems += 1
        print(f"{name}: {count} attacks, {problems} with a problem", flush=True)
        failed += problems
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
