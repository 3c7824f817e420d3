"""Environments that raised: counted for the whole run, which a limit ends."""

import warnings

from evorl.envs.rebuilding import Failures, with_trace
from evorl.pipeline.context import Context


def count_failures(context: Context, failures: Failures) -> None:
    """Warns of every new one; EnvError, with the environment's own traceback, past the limit.

    Of other ranks' failures those before this generation count, too.
    """
    limit = failures.limit
    for failure in failures.take():
        context.failures += 1
        if context.failures > limit:
            what = f"raised too often ({context.failures}, {limit} allowed; mend it or allow more)"
            raise with_trace(f"env.max_failures: {failures.env_id!r} {what}", failure)
        warnings.warn(
            f"{failures.env_id!r} raised, and a new environment took its place"
            f" ({context.failures} of {limit} allowed by env.max_failures): {failure.line}",
            stacklevel=2,
        )
