"""What a participation log says: how uneven, how biased, how it mixes, and what to use. Needs no JAX."""

from __future__ import annotations

from fedpbc.audit.log import ParticipationLog
from fedpbc.audit.readers import read_log

__all__ = ["ParticipationLog", "read_log"]
