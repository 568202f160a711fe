"""Link processes: which clients the server hears from in each round.

A new process is one file and one line in ``one_way.py``. Base probabilities (``probability.py``) and their
variation in time (``variation.py``) compose with any process that draws from probabilities.
"""

from __future__ import annotations

from fedpbc.links.one_way import ONE_WAY
from fedpbc.links.two_way import two_way
from fedpbc.schema import Kind

LINKS = Kind("link process", {**ONE_WAY.registry, "two_way": two_way})
