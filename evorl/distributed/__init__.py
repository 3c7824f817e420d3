"""The ranks of a run: one process, or several that `accelerate launch` started.

`evorl.distributed.world` has the World that every run has (imported by its own name, so that the
rest of the package loads neither torch nor accelerate). mesh.py lays the ranks out and says which
agents are whose, and launch.py reads what the launcher put into the environment.
"""

from evorl.distributed.launch import is_main_process_of_launch, let_main_speak_first
from evorl.distributed.mesh import Mesh, lay_out

__all__ = [
    "Mesh",
    "is_main_process_of_launch",
    "lay_out",
    "let_main_speak_first",
]
