"""Link processes: which clients the server hears from in each round.

A new process is one file and one line here. Base probabilities (``probability.py``) and their variation in
time compose with any process that draws from probabilities.
"""

from __future__ import annotations

from fedpbc.links.bernoulli import bernoulli
from fedpbc.links.trace import trace
from fedpbc.schema import Kind

LINKS = Kind("link process", {"bernoulli": bernoulli, "trace": trace})
