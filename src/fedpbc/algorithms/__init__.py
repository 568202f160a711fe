"""Federated methods. A new one is one file and one line here."""

from __future__ import annotations

from fedpbc.algorithms.fedavg import fedavg
from fedpbc.algorithms.fedavg_all import fedavg_all
from fedpbc.algorithms.fedpbc import fedpbc
from fedpbc.schema import Kind

ALGORITHMS = Kind("algorithm", {"fedavg": fedavg, "fedavg_all": fedavg_all, "fedpbc": fedpbc})
