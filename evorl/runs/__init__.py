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
    from evorl.runs.checkpoint import (
        Checkpoint,
        Checkpoints,
        Draft,
        Written,
        digest,
        reading,
        serialise,
    )
    from evorl.runs.compare import (
        Comparison,
        Floats,
        compare_runs,
        group_runs,
        interquartile_mean,
        interval,
        read_begun,
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
        GROUP,
        LINEAGE,
        LOCK,
        METRICS,
        SCHEDULE,
        STOP,
        SUMMARY,
        TOKEN,
        RunDirectory,
        Summary,
        total_seconds,
    )
    from evorl.runs.estimates import Estimate, decimals
    from evorl.runs.files import (
        TOO_LARGE,
        atomic_write,
        field,
        parse_json,
        read_bytes,
        read_lines,
        reason,
        run_error,
        strict_json,
    )
    from evorl.runs.grid import make_grid, read_grid
    from evorl.runs.group import Group, expand_groups, is_group, read_group
    from evorl.runs.reopening import find_started, make_checkpoints, reopen, with_known_choices
    from evorl.runs.status import RunState, find_runs, is_run, last_change, runs_below, state_of
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
