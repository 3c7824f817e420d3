"""Do two processes start and find each other? Tried with the launcher that users take."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType

from evorl.doctor.finding import Finding

MET = "two ranks have met"
SECONDS = 60.0
# As configs/accelerate/cpu.yaml, which an installed evorl does not have at hand.
LAUNCH = "distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: 'no'\n"
OTHERS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
ADVICE = "see docs/distributed.md; training in one process works without"


class TwoRanks:
    """A launch of two ranks on the CPU, which goes on while other checks are made."""

    def __init__(self, module: str = "evorl.doctor.meet", seconds: float = SECONDS) -> None:
        self.module, self.seconds = module, seconds

    def __enter__(self) -> "TwoRanks":
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        (folder / "launch.yaml").write_text(LAUNCH)
        self._output = folder / "output"
        launcher = [sys.executable, "-m", "accelerate.commands.launch"]
        options = ["--config_file", str(folder / "launch.yaml"), "--main_process_port", "0"]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [*launcher, *options, "-m", self.module],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=_environment(),
                start_new_session=True,
            )
        return self

    def __call__(self) -> Finding:
        """Wait for them."""
        try:
            code = self._process.wait(self.seconds)
        except subprocess.TimeoutExpired:
            self._end()
            return Finding("broken", f"they did not meet within {self.seconds:.0f} s", ADVICE)
        said = self._output.read_text(errors="replace").splitlines()
        if code == 0 and said.count(MET) == 1:
            return Finding("ok", "started by accelerate launch, met over gloo")
        errors = [line.strip() for line in said if "rror: " in line]
        return Finding("broken", errors[0] if errors else f"exit code {code}", ADVICE)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self._end()
        self._folder.cleanup()

    def _end(self) -> None:
        """The launcher hands SIGTERM on to its ranks, which are sessions of their own."""
        self._process.terminate()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def _environment() -> dict[str, str]:
    """This process's, without what another launcher may have put there."""
    kept = {name: value for name, value in os.environ.items() if name not in OTHERS}
    return kept | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"}
