"""Link processes: which clients the server hears from in each round.

A new process is one file and one line in ``one_way.py``. Base probabilities (``common/probability.py``) and their
variation in time (``common/variation.py``) compose with any process that draws from probabilities.
"""

from __future__ import annotations

from collections import ChainMap

from fedpbc.core.schema import Kind
from fedpbc.core.types import LinkProcess
from fedpbc.links.bernoulli import bernoulli
from fedpbc.links.cyclic import cyclic
from fedpbc.links.deadline import deadline
from fedpbc.links.fading import fading
from fedpbc.links.fedscale import fedscale
from fedpbc.links.gilbert_elliott import gilbert_elliott
from fedpbc.links.leo import leo
from fedpbc.links.markov import markov
from fedpbc.links.one_way import ONE_WAY
from fedpbc.links.outages import outages
from fedpbc.links.trace import trace
from fedpbc.links.two_way import two_way

LINKS: Kind = Kind("link process", ChainMap({"two_way": two_way}, ONE_WAY.registry), gives=LinkProcess)
"""``ONE_WAY``, and two of these together."""

__all__ = [
    "LINKS",
    "ONE_WAY",
    "bernoulli",
    "cyclic",
    "deadline",
    "fading",
    "fedscale",
    "gilbert_elliott",
    "leo",
    "markov",
    "outages",
    "trace",
    "two_way",
]
