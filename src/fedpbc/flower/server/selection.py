"""``fraction_train``: which of the clients that are here are asked in a round."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from fedpbc.flower.server.options import Options


def choose(names: Iterable[str], options: Options, t: int) -> set[str]:
    """max(floor(fraction_train n), min_train_nodes, 1) of n clients for round t, every set of so many alike.

    The order of sha256(selection_seed, t, name): a server that is killed and does the round again asks the same.
    """
    order = sorted(names, key=lambda name: _ticket(options.selection_seed, t, name))
    return set(order[: max(int(options.fraction_train * len(order)), options.min_train_nodes or 0, 1)])


def _ticket(seed: int, t: int, name: str) -> bytes:
    return hashlib.sha256(f"{seed} {t} {name}".encode(errors="backslashreplace")).digest()
