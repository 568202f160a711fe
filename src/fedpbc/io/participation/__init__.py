"""Read participation logs: which clients took part in which round. Used by the audit and by replayed traces.

A new format is a file here with a ``FORMAT``, and a line in ``formats.FORMATS``. A reader gives either ``Rows`` piece
by piece (``Table``), which are then sorted and checked alike for all formats, or a whole ``ParticipationLog``.
"""

from __future__ import annotations

from fedpbc.io.participation.formats import FORMATS, read_participation
from fedpbc.io.participation.log import ParticipationLog
from fedpbc.io.participation.reading import Reading
from fedpbc.io.participation.trace import read_trace

__all__ = ["FORMATS", "ParticipationLog", "Reading", "read_participation", "read_trace"]
