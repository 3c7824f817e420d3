"""The folder of a run: files, checkpoints, saved agents, resuming, status, comparison."""

from typing import TYPE_CHECKING

from evorl import lazy_door

if TYPE_CHECKING:
    from evorl.runs.agent import Agent as Agent
    from evorl.runs.agent import load_agent as load_agent
    from evorl.runs.checkpoint import Checkpoint as Checkpoint
    from evorl.runs.checkpoint import Checkpoints as Checkpoints
    from evorl.runs.checkpoint import Draft as Draft
    from evorl.runs.checkpoint import Written as Written
    from evorl.runs.checkpoint import digest as digest
    from evorl.runs.checkpoint import serialise as serialise
    from evorl.runs.compare import Comparison as Comparison
    from evorl.runs.compare import compare_runs as compare_runs
    from evorl.runs.compare import read_runs as read_runs
    from evorl.runs.directory import BEST as BEST
    from evorl.runs.directory import CHECKPOINTS as CHECKPOINTS
    from evorl.runs.directory import CONFIG as CONFIG
    from evorl.runs.directory import LINEAGE as LINEAGE
    from evorl.runs.directory import LOCK as LOCK
    from evorl.runs.directory import METRICS as METRICS
    from evorl.runs.directory import RunDirectory as RunDirectory
    from evorl.runs.directory import SCHEDULE as SCHEDULE
    from evorl.runs.directory import SUMMARY as SUMMARY
    from evorl.runs.files import JsonLines as JsonLines
    from evorl.runs.files import atomic_write as atomic_write
    from evorl.runs.files import field as field
    from evorl.runs.files import parse_json as parse_json
    from evorl.runs.files import read_bytes as read_bytes
    from evorl.runs.files import reason as reason
    from evorl.runs.files import run_error as run_error
    from evorl.runs.resume import find_started as find_started
    from evorl.runs.resume import make_checkpoints as make_checkpoints
    from evorl.runs.resume import reopen as reopen
    from evorl.runs.resume import with_known_choices as with_known_choices
    from evorl.runs.saved_agent import FACTS as FACTS
    from evorl.runs.saved_agent import Interface as Interface
    from evorl.runs.saved_agent import SavedAgent as SavedAgent
    from evorl.runs.saved_agent import WEIGHTS as WEIGHTS
    from evorl.runs.saved_agent import make_algorithm as make_algorithm
    from evorl.runs.saved_agent import save_agent as save_agent
    from evorl.runs.saved_agent import write_facts as write_facts
    from evorl.runs.statistics import Estimate as Estimate
    from evorl.runs.statistics import Floats as Floats
    from evorl.runs.statistics import interquartile_mean as interquartile_mean
    from evorl.runs.statistics import interval as interval
    from evorl.runs.statistics import summarise_group as summarise_group
    from evorl.runs.status import RunState as RunState
    from evorl.runs.status import find_runs as find_runs
    from evorl.runs.status import is_run as is_run
    from evorl.runs.status import last_change as last_change
    from evorl.runs.status import runs_below as runs_below
    from evorl.runs.status import state_of as state_of
else:
    __getattr__, __dir__, __all__ = lazy_door(__file__)
