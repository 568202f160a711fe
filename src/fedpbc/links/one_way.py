"""The registry of link processes that say whom the server hears, and nothing of a separate downlink."""

from __future__ import annotations

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
from fedpbc.links.outages import outages
from fedpbc.links.trace import trace

ONE_WAY = Kind(
    "link process",
    {
        "bernoulli": bernoulli,
        "markov": markov,
        "gilbert_elliott": gilbert_elliott,
        "cyclic": cyclic,
        "outages": outages,
        "fading": fading,
        "deadline": deadline,
        "leo": leo,
        "trace": trace,
        "fedscale": fedscale,
    },
    gives=LinkProcess,
)
