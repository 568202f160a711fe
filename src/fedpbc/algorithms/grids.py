"""What ``fedpbc tune`` tries of each method's own options, beside the learning rates of clients and server.

A method that is not here has none. An option that an entry of the experiment sets to another value than its default is
what that entry is about, and stays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

OWN: Mapping[str, Mapping[str, list[Any]]] = {
    "amplified_fedavg": {"gamma": [1.2, 1.5, 2.0]},
    "f3ast": {"beta": [0.001, 0.01, 0.1]},
    "fedau": {"cutoff": [0, 10, 50]},
    "fedawe": {"clip": [0, 10, 50], "norm_limit": [0.0, 0.5]},
    "fedfade": {"fading": ["learnt", 0.9], "cutoff": [0, 50]},
    "fedprox": {"mu": [0.01, 0.1, 1.0]},
    "fedstale": {"beta": [0.2, 0.5, 0.8]},
}
"""0 is "no limit" for ``cutoff``, ``clip`` and ``norm_limit``."""

PLAIN_STEP: Mapping[str, Callable[[int, int], float]] = {
    "focus": lambda local_steps, num_clients: local_steps / num_clients
}
"""Server step sizes with which a round goes as far as s plain local steps do, from s and m, where that is not 1.

What ``server`` multiplies in place of a default that was chosen for another number of clients. FOCUS: y is a sum over
the clients, so that its default, 1, is m / s times as long.
"""
