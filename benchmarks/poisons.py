"""What attacks.py does to files: nasty values, damage, and whole run folders that are poisoned."""

import json
import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 2**63, -(10**15), 10**15, 10**9, 10**400, 0.5, -1e300, 1e300),
    *("", "x" * 10_000, "\x1b[31m\n", "\ud800", "../../outside", "os:system", "NaN"),
    *([], [[]], [1] * 10_000, [None], ["a"], {}, {"a": 1}, {"": {}}),
    *(float("nan"), float("inf"), -float("inf")),
]


def resumed_from(run: Path) -> set[str]:
    """Those from which a run resumes, by name."""
    newest = sorted((run / "checkpoints").iterdir())[-1]
    return {"lineage.jsonl", *(path.name for path in newest.iterdir())}


def mutate(chance: random.Random, facts: dict[str, Any]) -> str:
    """Another value at a random place, a place that is gone, or one more; what it was."""
    node: Any = facts
    where: list[str] = []
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            break
        key = chance.choice(keys)
        where.append(str(key))
        deeper = isinstance(node[key], dict | list) and node[key]
        if not deeper or chance.random() < 0.15:
            kind = chance.choice(["value", "value", "value", "gone", "more"])
            if kind == "gone":
                del node[key]
            elif kind == "more" and isinstance(node, dict):
                node[f"{key}x"] = node[key]
            else:
                node[key] = value = chance.choice(VALUES)
                kind = f"{value!r:.40}"
            return f"{'.'.join(where)}: {kind}"
        node = node[key]
    return "nothing"


def damage_file(chance: random.Random, path: Path, outside: Path) -> str:
    """Other bytes, fewer, none, a link or a pipe; what it was."""
    data = bytearray(path.read_bytes())
    kind = chance.choice(["flip", "flip", "cut", "empty", "gone", "link", "pipe", "junk", "digit"])
    digits = [place for place, byte in enumerate(data) if chr(byte).isdigit()]
    if kind == "digit" and digits and path.suffix != ".safetensors":
        place = chance.choice(digits)
        data[place] = ord(chance.choice([d for d in "0123456789" if ord(d) != data[place]]))
    elif kind in ("flip", "digit"):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif kind == "cut":
        del data[chance.randrange(len(data)) :]
    elif kind == "empty":
        data.clear()
    elif kind == "junk":
        data = bytearray(chance.randbytes(chance.randrange(5000)))
    path.unlink()
    if kind == "link":
        path.symlink_to(outside / "file")
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind != "gone":
        path.write_bytes(data)
    return f"{path.name}: {kind}"


def fuzzed(chance: random.Random, texts: list[str]) -> bytes:
    """A text made of configurations, or one that stands for more than it shows."""
    data = bytearray(chance.choice(texts).encode())
    kind = chance.randrange(6)
    if kind == 0:
        return bombs(chance).encode()
    if kind == 1:
        for _ in range(chance.randrange(1, 20)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        return bytes(data)
    lines = data.decode().splitlines()
    other = chance.choice(texts).splitlines()
    for _ in range(chance.randrange(1, 6)):
        place = chance.randrange(len(lines))
        key, colon, _ = lines[place].partition(":")
        if kind == 2 and colon:
            value = chance.choice(VALUES)
            lines[place] = f"{key}: {json.dumps(value)}"
        elif kind == 3:
            lines.insert(place, chance.choice(other))
        elif kind == 4:
            lines[place] = " " * chance.randrange(6) + lines[place].strip()
        else:
            junk = [
                "&a",
                "*a",
                "<<: *a",
                "!!python/name:os.system",
                "? [",
                "- -",
                "%TAG",
                "\t",
                "|",
            ]
            lines[place] += " " + chance.choice(junk)
    return "\n".join(lines).encode()


def bombs(chance: random.Random) -> str:
    """A short text of many values, a long one, or a deep one."""
    wide, deep = chance.randrange(2, 12), chance.randrange(2, 30)
    inner = ", ".join(["*a{0}"] * wide)
    start = "a0: &a0 [x, y]\n"
    return chance.choice(
        [
            start + "".join(f"a{i + 1}: &a{i + 1} [{inner.format(i)}]\n" for i in range(deep)),
            "a0: &a0 {x: 1}\n"
            + "".join(f"a{i + 1}: &a{i + 1} {{<<: [{inner.format(i)}]}}\n" for i in range(deep)),
            "env: {id: CartPole-v1, wrappers: [" + "{name: TimeLimit}," * 2000 + "]}",
            "env: {id: CartPole-v1, kwargs: {a: [" + "1," * chance.randrange(300_000) + "]}}",
            "env: &a {id: *a}",
            chance.choice("[{") * chance.randrange(10, 5000),
            "".join(" " * i + "a:\n" for i in range(chance.randrange(10, 500))),
            "name: " + "x" * chance.randrange(10**6),
            f"seed: {'9' * chance.randrange(1, 10_000)}",
            "network: {hidden: [" + "64," * chance.randrange(30_000) + "]}",
        ]
    )


Poison = Callable[[random.Random, Path, Path], object]


def _line(**changes: Any) -> Poison:
    """Other values in the last line of metrics.jsonl."""

    def poison(chance: random.Random, run: Path, outside: Path) -> None:
        lines = (run / "metrics.jsonl").read_text().splitlines()
        text = json.dumps(json.loads(lines[-1]) | changes)
        (run / "metrics.jsonl").write_text("\n".join([*lines[:-1], text, ""]))

    return poison


def _text(name: str, text: str | bytes) -> Poison:
    """Another file."""

    def poison(chance: random.Random, run: Path, outside: Path) -> None:
        (run / name).write_bytes(text if isinstance(text, bytes) else text.encode())

    return poison


def _pipe(name: str) -> Poison:
    def poison(chance: random.Random, run: Path, outside: Path) -> None:
        (run / name).unlink(missing_ok=True)
        os.mkfifo(run / name)

    return poison


def _link(name: str) -> Poison:
    """What leads out of the run: to a copy, where there was a folder."""

    def poison(chance: random.Random, run: Path, outside: Path) -> None:
        path = run / name
        if path.exists():
            path.rename(run.parent.parent / "moved")
        path.symlink_to(run.parent.parent / "moved" if "." not in name else outside / "file")

    return poison


def _mutated(name: str) -> Poison:
    """Another value somewhere in a file of JSON."""

    def poison(chance: random.Random, run: Path, outside: Path) -> None:
        facts = json.loads((run / name).read_bytes())
        mutate(chance, facts)
        (run / name).write_text(json.dumps(facts))

    return poison


def _old(seconds: float) -> Poison:
    def poison(chance: random.Random, run: Path, outside: Path) -> None:
        for path in run.iterdir():
            os.utime(path, (seconds, seconds))

    return poison


def _renamed(chance: random.Random, run: Path, outside: Path) -> None:
    """A name that is not UTF-8; what names it is not found then."""
    os.rename(run, os.fsencode(run.parent) + b"/bad\xff\xfe")


DEEP = "[" * 100_000
LAUGHS = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(20)
)
POISONS: dict[str, Poison] = {
    "steps of 10**400": _line(env_steps=10**400),
    "infinite seconds": _line(seconds=float("inf")),
    "NaN as the best": _line(best=float("nan")),
    "steps below 0": _line(env_steps=-(10**15)),
    "text for steps": _line(env_steps="many"),
    "a list for fitness": _line(fitness=[[[]]]),
    "text for fitness": _line(fitness=["a", "b"]),
    "too few agents": _line(ids=[0]),
    "agents that are unknown": _line(ids=[10**6, 10**6 + 1]),
    "hyperparameters of text": _line(hyperparameters={"lr": ["a", "b"]}),
    "half a surrogate": _line(hyperparameters={"\ud800": [1.0, 2.0]}),
    "actors of text": _line(actors={"alive": "all", "refused": []}),
    "huge numbers": _line(best=1e308, seconds=1e308),
    "metrics is a list": _text("metrics.jsonl", "[]\n"),
    "metrics is deep": _text("metrics.jsonl", DEEP + "\n"),
    "metrics is junk": _text("metrics.jsonl", b"\xff\x00\n" * 50),
    "metrics is empty": _text("metrics.jsonl", ""),
    "lineage is junk": _text("lineage.jsonl", b"\xff\x00\n" * 50),
    "lineage is deep": _text("lineage.jsonl", DEEP + "\n"),
    "lineage is empty": _text("lineage.jsonl", ""),
    "config with anchors": _text("config.yaml", LAUGHS),
    "config is a list": _text("config.yaml", "[1, 2]"),
    "config is deep": _text("config.yaml", DEEP),
    "config is junk": _text("config.yaml", b"\xff\xfe\x00"),
    "config is long": _text("config.yaml", "env: {id: " + "x" * 10**6 + "}"),
    "config of escapes": _text("config.yaml", 'env: {id: "\\e[2J\\e]0;x\\a"}'),
    "config without env": _text("config.yaml", "seed: 1"),
    "budget of 10**400": _text(
        "config.yaml", f"env: {{id: a}}\nbudget: {{env_steps: 1{'0' * 400}}}"
    ),
    "summary is deep": _text("summary.json", DEEP),
    "summary of 10**400": _text("summary.json", f'{{"env_steps": 1{"0" * 400}}}'),
    "summary is a list": _text("summary.json", "[]"),
    "summary is forged": _mutated("summary.json"),
    "agent is forged": _mutated("best/agent.json"),
    "agent is forged again": _mutated("best/agent.json"),
    "agent is deep": _text("best/agent.json", DEEP),
    "weights are junk": _text("best/weights.safetensors", b"\xff" * 100),
    "failure is a list": _text("failure.json", "[1]"),
    "schedule with anchors": _text("schedule.yaml", LAUGHS),
    "a pipe as lock": _pipe(".lock"),
    "a pipe as config": _pipe("config.yaml"),
    "a pipe as metrics": _pipe("metrics.jsonl"),
    "a pipe as agent": _pipe("best/agent.json"),
    "a pipe as summary": _pipe("summary.json"),
    "a link as lock": _link(".lock"),
    "a link as metrics": _link("metrics.jsonl"),
    "a link as best": _link("best"),
    "a link as checkpoints": _link("checkpoints"),
    "a link as what is written": _link("metrics.jsonl.new"),
    "before all time": _old(-1e9),
    "a name that is not UTF-8": _renamed,
}
