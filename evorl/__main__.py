"""python -m evorl: the evorl command. Commands are in cli/, listed in cli/__init__.py."""

from evorl.cli import main

main()
