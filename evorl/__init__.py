"""evorl: a population of reinforcement-learning agents trained as one tensor program."""

__version__ = "0.1.0"
