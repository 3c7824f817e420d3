"""python -m evorl: the same as the evorl command."""

from evorl.cli import main

main()
