"""The folder of a run: files, checkpoints, saved agents, resuming, status, comparison."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.runs.agent import (
        FACTS,
        WEIGHTS,
        Agent,
        Interface,
        SavedAgent,
        load_agent,
        load_algorithm,
        save_agent,
        write_facts,
    )
    from evorl.runs.checkpoint import Checkpoint, Checkpoints, Draft, Written, digest, serialise
    from evorl.runs.compare import (
        Comparison,
        Floats,
        compare_runs,
        interquartile_mean,
        interval,
        read_finished,
        read_runs,
        summarise_group,
    )
    from evorl.runs.directory import (
        BEST,
        BEST_AGENT,
        CHECKPOINTS,
        CONFIG,
        FAILURE,
        LINEAGE,
        LOCK,
        METRICS,
        SCHEDULE,
        STOP,
        SUMMARY,
        TOKEN,
        RunDirectory,
        Summary,
    )
    from evorl.runs.estimates import Estimate, decimals
    from evorl.runs.files import (
        atomic_write,
        field,
        parse_json,
        read_bytes,
        read_lines,
        reason,
        run_error,
        strict_json,
    )
    from evorl.runs.reopening import find_started, make_checkpoints, reopen, with_known_choices
    from evorl.runs.status import RunState, find_runs, is_run, last_change, runs_below, state_of
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
