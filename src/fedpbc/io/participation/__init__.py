"""Read participation logs: which clients took part in which round. Used by the audit and by replayed traces.

A new format is a file here with a ``FORMAT``, and a line in ``formats.FORMATS``, which tells a file's format from its
content. A reader gives either ``Rows`` piece by piece (``Table``), which are then sorted and checked alike for all
formats, or a whole ``ParticipationLog``. ``Source`` is the file; ``columns`` says which column is what; ``times`` reads
times, and ``intervals`` makes rounds of them; ``records`` and ``arrow`` are tables of rows and of columns.
"""

from __future__ import annotations

from fedpbc.io.participation.formats import FORMATS, read_participation
from fedpbc.io.participation.log import ParticipationLog
from fedpbc.io.participation.reading import Reading
from fedpbc.io.participation.trace import read_trace

__all__ = ["FORMATS", "ParticipationLog", "Reading", "read_participation", "read_trace"]
