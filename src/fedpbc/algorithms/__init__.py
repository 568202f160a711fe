"""Federated methods. A new one is one file and one line here."""

from __future__ import annotations

from fedpbc.algorithms.amplified_fedavg import amplified_fedavg
from fedpbc.algorithms.area import area
from fedpbc.algorithms.debiased_fedavg import debiased_fedavg
from fedpbc.algorithms.f3ast import f3ast
from fedpbc.algorithms.fedau import fedau
from fedpbc.algorithms.fedavg import fedavg
from fedpbc.algorithms.fedavg_all import fedavg_all
from fedpbc.algorithms.fedavg_known import fedavg_known
from fedpbc.algorithms.fedawe import fedawe
from fedpbc.algorithms.fedfade import fedfade
from fedpbc.algorithms.fedpbc import fedpbc
from fedpbc.algorithms.fedpbc_corrected import fedpbc_corrected
from fedpbc.algorithms.fedprox import fedprox
from fedpbc.algorithms.fedstale import fedstale
from fedpbc.algorithms.fedvarp import fedvarp
from fedpbc.algorithms.focus import focus
from fedpbc.algorithms.mifa import mifa
from fedpbc.algorithms.scaffold import scaffold
from fedpbc.core.schema import Kind
from fedpbc.core.types import Algorithm

ALGORITHMS: Kind = Kind(
    "algorithm",
    {
        "fedavg": fedavg,
        "fedavg_all": fedavg_all,
        "fedavg_known": fedavg_known,
        "debiased_fedavg": debiased_fedavg,
        "fedau": fedau,
        "f3ast": f3ast,
        "fedprox": fedprox,
        "amplified_fedavg": amplified_fedavg,
        "mifa": mifa,
        "fedvarp": fedvarp,
        "fedstale": fedstale,
        "area": area,
        "focus": focus,
        "scaffold": scaffold,
        "fedfade": fedfade,
        "fedawe": fedawe,
        "fedpbc": fedpbc,
        "fedpbc_corrected": fedpbc_corrected,
    },
    gives=Algorithm,
    elsewhere={
        name: f'write name = "fedavg", server = {{ name = "{server}" }}'
        for name, server in {"fedavgm": "momentum", "fedadam": "adam", "fedyogi": "yogi"}.items()
    },
)

__all__ = [
    "ALGORITHMS",
    "amplified_fedavg",
    "area",
    "debiased_fedavg",
    "f3ast",
    "fedau",
    "fedavg",
    "fedavg_all",
    "fedavg_known",
    "fedawe",
    "fedfade",
    "fedpbc",
    "fedpbc_corrected",
    "fedprox",
    "fedstale",
    "fedvarp",
    "focus",
    "mifa",
    "scaffold",
]
