"""The command line in this process, as the other tests of it have it."""

from test_cli import evorl

__all__ = ["evorl"]
