"""FedPBC and its rivals on real machines, through Flower: strategies for the server, a mod for the clients.

    from fedpbc.flower import FedPBC, fedpbc_mod

    strategy = FedPBC(round_deadline=60)        # instead of FedAvg(...)
    @app.train(mods=[fedpbc_mod])               # instead of @app.train()

docs/deployment.md has the rest. Imports NumPy and Flower, never JAX.
"""

from __future__ import annotations

from fedpbc.flower.client.drift import DriftCorrection, drift_correction
from fedpbc.flower.client.mod import fedpbc_mod
from fedpbc.flower.methods.fedpbc import FedPBC
from fedpbc.flower.methods.fedpbc_corrected import FedPBCCorrected
from fedpbc.flower.methods.rivals import MIFA, FedAU, FedAvg, FedVARP
from fedpbc.flower.methods.scaffold import SCAFFOLD
from fedpbc.flower.rehearsal.grid import InProcessGrid
from fedpbc.flower.rehearsal.trace import drop_by_trace
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
