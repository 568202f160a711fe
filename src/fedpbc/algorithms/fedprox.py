"""FedProx: FedAvg whose clients are held near the model they started from (Li et al., arXiv 1812.06127)."""

from __future__ import annotations

import numpy as np

from fedpbc.algorithms.common.server import Server
from fedpbc.algorithms.common.weighting import weighted
from fedpbc.algorithms.fedavg import WEIGHTING
from fedpbc.core.schema import Context, NonNegative, component
from fedpbc.core.types import Algorithm


@component
def fedprox(context: Context, *, mu: NonNegative = 0.1, server: Server | None = None) -> Algorithm:
    """FedAvg with + mu/2 ||x - x^t||^2 in every local objective (arXiv 1812.06127).

    Local steps x <- x - eta (grad l_i(x; xi) + mu (x - x^t)); mu = 0 is FedAvg. The bias of unequal
    participation stays. Theirs solves the local problem inexactly; here it is s steps, as for everybody.

    >>> fedprox(mu=0.5).build(Context(0, np.dtype(np.float64), 1)).params["proximal"].item()
    0.5
    """
    return weighted(
        WEIGHTING,
        server,
        proximal=context.number("mu", mu) if mu else np.zeros((), context.dtype),
        needs="the proximal term in local training",
    )
