"""FedPBC and its rivals on real machines, through Flower: strategies for the server, a mod for the clients.

    from fedpbc.flower import FedPBC, fedpbc_mod

    strategy = FedPBC(round_deadline=60)        # instead of FedAvg(...)
    @app.train(mods=[fedpbc_mod])               # instead of @app.train()

docs/deployment.md has the rest. Imports NumPy and Flower, never JAX.
"""

from __future__ import annotations

from fedpbc.flower.client import fedpbc_mod
from fedpbc.flower.corrected import FedPBCCorrected
from fedpbc.flower.drift import DriftCorrection, drift_correction
from fedpbc.flower.fedpbc import FedPBC
from fedpbc.flower.grid import InProcessGrid
from fedpbc.flower.links import drop_by_trace
from fedpbc.flower.methods import MIFA, FedAU, FedAvg, FedVARP
from fedpbc.flower.scaffold import SCAFFOLD
from fedpbc.flower.strategy import UnreliableClients

__all__ = [
    "MIFA",
    "SCAFFOLD",
    "DriftCorrection",
    "FedAU",
    "FedAvg",
    "FedPBC",
    "FedPBCCorrected",
    "FedVARP",
    "InProcessGrid",
    "UnreliableClients",
    "drift_correction",
    "drop_by_trace",
    "fedpbc_mod",
]
