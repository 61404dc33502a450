"""Ranks for distributed tests at the price of milliseconds.

A *nursery* process imports torch once per pytest session and then forks ranks on demand. A *world* is a set
of forked ranks with an initialised default process group; a test sends functions to it and gets one result
per rank. Every world starts from the nursery's untouched state, so nothing leaks from one test into the next,
and a rank that raises, hangs or dies costs its own world only.
"""

from tests.harness.outcome import HarnessError, Outcome, RankFailure
from tests.harness.pool import RankPool, World
from tests.harness.spec import WorldSpec

__all__ = ["HarnessError", "Outcome", "RankFailure", "RankPool", "World", "WorldSpec"]
