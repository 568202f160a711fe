"""The conformance kit: what every component of the package is tested with, for yours, in your own tests.

    from fedpbc.testing import check_algorithm

    def test_mine():
        check_algorithm(mine(rate=0.5))

A check raises ``ConformanceError``, an AssertionError that says what is wrong.
"""

from __future__ import annotations

from fedpbc.testing.algorithms import check_algorithm
from fedpbc.testing.common import ConformanceError
from fedpbc.testing.links import check_links
from fedpbc.testing.problems import check_problem

__all__ = ["ConformanceError", "check_algorithm", "check_links", "check_problem"]
