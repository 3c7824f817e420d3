"""The folder of a run: files, checkpoints, saved agents, resuming, status, comparison."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.runs.agent import Agent as Agent, load_agent as load_agent
    from evorl.runs.checkpoint import (
        Checkpoint as Checkpoint,
        Checkpoints as Checkpoints,
        Draft as Draft,
        Written as Written,
        digest as digest,
        serialise as serialise,
    )
    from evorl.runs.compare import (
        Comparison as Comparison,
        compare_runs as compare_runs,
        read_runs as read_runs,
    )
    from evorl.runs.directory import (
        BEST as BEST,
        CHECKPOINTS as CHECKPOINTS,
        CONFIG as CONFIG,
        LINEAGE as LINEAGE,
        LOCK as LOCK,
        METRICS as METRICS,
        SCHEDULE as SCHEDULE,
        SUMMARY as SUMMARY,
        RunDirectory as RunDirectory,
    )
    from evorl.runs.files import (
        JsonLines as JsonLines,
        atomic_write as atomic_write,
        field as field,
        parse_json as parse_json,
        read_bytes as read_bytes,
        reason as reason,
        run_error as run_error,
    )
    from evorl.runs.resume import (
        find_started as find_started,
        make_checkpoints as make_checkpoints,
        reopen as reopen,
        with_known_choices as with_known_choices,
    )
    from evorl.runs.saved_agent import (
        FACTS as FACTS,
        WEIGHTS as WEIGHTS,
        Interface as Interface,
        SavedAgent as SavedAgent,
        make_algorithm as make_algorithm,
        save_agent as save_agent,
        write_facts as write_facts,
    )
    from evorl.runs.statistics import (
        Estimate as Estimate,
        Floats as Floats,
        interquartile_mean as interquartile_mean,
        interval as interval,
        summarise_group as summarise_group,
    )
    from evorl.runs.status import (
        RunState as RunState,
        find_runs as find_runs,
        is_run as is_run,
        last_change as last_change,
        runs_below as runs_below,
        state_of as state_of,
    )
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
