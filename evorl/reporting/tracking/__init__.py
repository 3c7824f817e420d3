"""A run on Weights & Biases and TensorBoard, as far as it asks for that.

metrics.jsonl and lineage.jsonl are the truth, and all that trackers see: story.py reads them,
rows.py has what is told of a generation, family.py who descends from whom and what mutations
brought. weights_and_biases.py and tensor_board.py write it down elsewhere, through Accelerate's
trackers; tracking.py sees to it that none of them ever stops a run.
"""

from evorl.reporting.tracking.tracking import Tracking, refuse_missing

__all__ = ["Tracking", "refuse_missing"]
