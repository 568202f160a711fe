"""What a participation log says: how uneven, how biased, how it mixes, and what to use. Needs no JAX.

>>> import numpy as np
>>> log = ParticipationLog.from_matrix(np.random.default_rng(0).random((500, 10)) < 0.5)
>>> audit(log).advice[0].advice
'Stay with FedAvg over the active clients.'
"""

from __future__ import annotations

from fedpbc.audit.findings import audit
from fedpbc.audit.reading import read_log
from fedpbc.audit.types import Findings
from fedpbc.io.participation.log import ParticipationLog

__all__ = ["Findings", "ParticipationLog", "audit", "read_log"]
