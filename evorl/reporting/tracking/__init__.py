"""A run on Weights & Biases and TensorBoard, if its configuration asks for that.

metrics.jsonl and lineage.jsonl are the truth, and all that trackers see: run_reader.py reads them,
charts.py draws curves and tables of them, trackers.py copies both to W&B and TensorBoard, through
Accelerate's trackers; tracking.py sees to it that none of them ever stops a run.
"""

from evorl.reporting.tracking.tracking import Tracking, refuse_missing

__all__ = ["Tracking", "refuse_missing"]
