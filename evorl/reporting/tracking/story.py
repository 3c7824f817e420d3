"""What the files of a run have told so far, generation by generation."""

import json
from collections.abc import Iterator
from typing import Any

from evorl.evolution.lineage import Lineage, parse_line
from evorl.reporting.tracking.family import Mutations
from evorl.reporting.tracking.rows import Evolving, Row, values_of
from evorl.reporting.tracking.tail import Tail
from evorl.runs.directory import BEST, LINEAGE, METRICS, RunDirectory
from evorl.runs.saved_agent import FACTS


class Story:
    """Reads metrics.jsonl and lineage.jsonl as they grow."""

    def __init__(self, directory: RunDirectory, evolving: Evolving) -> None:
        self.directory, self.evolving = directory, evolving
        self.lineage, self.mutations = Lineage(), Mutations()
        self.latest: dict[str, Any] = {}  # line of metrics.jsonl
        self._metrics = Tail(directory.path / METRICS)
        self._lineage = Tail(directory.path / LINEAGE)

    def news(self) -> Iterator[Row]:
        """The generations that were not told yet."""
        for line in self._lineage.news():
            self.lineage.add(parse_line(line))
        for text in self._metrics.news():
            yield self._row(json.loads(text))

    def _row(self, line: dict[str, Any]) -> Row:
        self.latest = line
        generation = line["generation"]
        for agent in line["ids"]:
            born = self.lineage.births[agent]
            if born.generation == generation and born.genome.parent is not None:
                self.mutations.add(self.lineage, born)
        values = values_of(line, self.evolving) | self.mutations.values()
        return Row(generation, line["env_steps"], values)

    def alive(self) -> list[int]:
        """The agents of the latest generation, the best first; the dead are left out."""
        known = [
            (fitness, agent)
            for fitness, agent in zip(self.latest["fitness"], self.latest["ids"], strict=True)
            if fitness is not None
        ]
        return [agent for _, agent in sorted(known, reverse=True)]

    def best(self) -> tuple[int, int] | None:
        """The best agent so far, and the generation at whose end it was seen."""
        path = self.directory.path / BEST / FACTS
        if not path.exists():
            return None
        known = json.loads(path.read_bytes())
        return known["genome"]["id"], known["facts"]["generation"]
