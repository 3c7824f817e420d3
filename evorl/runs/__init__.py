"""The folder of a run: files, checkpoints, saved agents, resuming, status, comparison."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.runs.agent import Agent, load_agent
    from evorl.runs.checkpoint import Checkpoint, Checkpoints, Draft, Written, digest, serialise
    from evorl.runs.compare import Comparison, compare_runs, read_runs
    from evorl.runs.directory import (
        BEST,
        CHECKPOINTS,
        CONFIG,
        LINEAGE,
        LOCK,
        METRICS,
        SCHEDULE,
        SUMMARY,
        RunDirectory,
    )
    from evorl.runs.files import (
        JsonLines,
        atomic_write,
        field,
        parse_json,
        read_bytes,
        reason,
        run_error,
    )
    from evorl.runs.resume import find_started, make_checkpoints, reopen, with_known_choices
    from evorl.runs.saved_agent import (
        FACTS,
        WEIGHTS,
        Interface,
        SavedAgent,
        make_algorithm,
        save_agent,
        write_facts,
    )
    from evorl.runs.statistics import (
        Estimate,
        Floats,
        interquartile_mean,
        interval,
        summarise_group,
    )
    from evorl.runs.status import RunState, find_runs, is_run, last_change, runs_below, state_of
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
