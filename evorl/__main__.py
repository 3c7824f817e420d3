"""python -m evorl: the evorl command. Commands are in cli/, listed in cli/__init__.py."""

import sys
from pathlib import Path

# python -m puts the current folder there: a numpy.py in it is not ours to run.
if not sys.flags.safe_path and sys.path[0] != str(Path(__file__).parent.parent):
    del sys.path[0]

from evorl.cli import main

main()
