"""One part of a grid, for one of several machines: ``--cells 2/8`` is the second of eight."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fedpbc.errors import ConfigError, shorten


@dataclass(frozen=True, order=True)
class Part:
    """Part ``index`` of ``count``; the first is 1."""

    index: int
    count: int

    @classmethod
    def parse(cls, text: Any, key: str) -> Part:
        """``"2/8"`` as a part. Raises ConfigError, which names ``key``."""
        found = re.fullmatch(r"\s*([0-9]{1,9})\s*/\s*([0-9]{1,9})\s*", text) if isinstance(text, str) else None
        part = cls(int(found[1]), int(found[2])) if found else None
        if part is None or not 1 <= part.index <= part.count:
            raise ConfigError(f"{key} {shorten(text)}: must be I/N with I from 1 to N, like 2/8")
        return part

    def positions(self, seeds: Sequence[int]) -> list[int]:
        """Which cells of a grid are its own, in order, from the seed of each cell.

        Cells are taken seed by seed, as a run computes them, and cut into ``count`` blocks whose sizes differ by at
        most one: a part needs the data of few seeds.

        >>> Part(1, 2).positions([0, 1, 0, 1]), Part(2, 2).positions([0, 1, 0, 1])
        ([0, 2], [1, 3])
        """
        rank = {seed: i for i, seed in enumerate(dict.fromkeys(seeds))}
        order = sorted(range(len(seeds)), key=lambda i: rank[seeds[i]])
        first, last = ((self.index - 1) * len(seeds)) // self.count, (self.index * len(seeds)) // self.count
        return sorted(order[first:last])

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"
