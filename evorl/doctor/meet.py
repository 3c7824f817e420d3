"""What each of the two ranks does: meet the other one, and agree with it.

accelerate launch --config_file configs/accelerate/cpu.yaml -m evorl.doctor.meet
"""

import sys

from evorl.distributed.world import World
from evorl.doctor.ranks import MET


def main() -> None:
    """Start, exchange a message, say so on the main rank."""
    world = World.start(agents=2, timeout=30.0)
    try:
        heard = world.gather(f"rank {world.rank}".encode())
        told = world.broadcast(b"welcome" if world.main else None)
        fine = heard is None or heard == [b"rank 0", b"rank 1"]
        if world.agree(not fine or told != b"welcome"):
            sys.exit("error: the ranks did not understand each other")
        if world.main:
            print(MET, flush=True)
    finally:
        world.close()


if __name__ == "__main__":
    main()
