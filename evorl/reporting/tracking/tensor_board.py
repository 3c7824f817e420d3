"""TensorBoard: a run's numbers as event files in its folder, by environment steps."""

from collections.abc import Mapping

from accelerate.tracking import TensorBoardTracker  # type: ignore[import-untyped]

from evorl.config import RunConfig, dump_config
from evorl.reporting.console import Console
from evorl.reporting.tracking.rows import Row
from evorl.reporting.tracking.story import Story
from evorl.runs.directory import RunDirectory

FOLDER = "tensorboard"


class TensorBoard:
    """Writes through Accelerate's tracker."""

    name = "TensorBoard"

    def __init__(self, config: RunConfig, directory: RunDirectory, console: Console) -> None:
        self.config, self.directory, self.console = config, directory, console
        # A run that goes on tells all of it again: with this, TensorBoard forgets what was there.
        self.tracker = TensorBoardTracker(FOLDER, directory.path, purge_step=0)

    def begin(self) -> int:
        """The first generation to tell: all of them, as that takes a second in a thousand."""
        self.tracker.start()
        indented = "".join(f"    {line}\n" for line in dump_config(self.config).splitlines())
        self.tracker.log({"config": indented}, step=0)
        self.console.say(f"TensorBoard:  tensorboard --logdir {self.directory.path / FOLDER}")
        return 0

    def log(self, row: Row) -> None:
        """One generation."""
        self.tracker.log({"generation": row.generation, **row.values}, step=row.env_steps)

    def draw(self, story: Story) -> None:
        """Has no charts of its own: TensorBoard draws each number by itself."""

    def end(self, story: Story, final: Mapping[str, float]) -> None:
        """The final figures."""
        self.tracker.log(dict(final), step=story.latest["env_steps"])

    def close(self, finished: bool) -> None:
        """No more will come."""
        self.tracker.finish()

    def abandon(self, error: Exception) -> None:
        """It failed."""
