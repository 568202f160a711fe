"""What methods share whose clients keep their own last update, and send by how much the new one differs from it."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from fedpbc.algorithms.common.broadcast import nothing_known
from fedpbc.core.aggregation import masked_sum, select
from fedpbc.core.types import Array


class Kept(NamedTuple):
    """The latest updates where the clients keep them, and their mean on the server."""

    own: Array
    """h_i, [m, d]: on client i, what of it was last counted; 0 at the start."""
    mean: Array
    """hbar, [d]: on the server, (1/m) sum of the h_i of the current epoch."""
    epoch: Array
    """int[m]: on client i, the epoch that h_i belongs to; -1 after a loss."""
    server_epoch: Array
    """The epoch of the server."""


def nothing_kept(x0: Array, num_clients: int) -> Kept:
    """h_i = hbar = 0, everybody in epoch 0."""
    return Kept(nothing_known(x0, num_clients), x0 * 0, np.zeros(num_clients, np.int32), np.int32(0))


def exchange(kept: Kept, latest: Array, reported: Array, receives: Array) -> tuple[Kept, Array, Array]:
    """(h_i = u_i and hbar += (1/m) sum over A of (u_i - h_i), the differences [m, d], whose count bool[m]).

    ``latest`` [m, d]: u_i, the new updates. ``reported`` bool[m]: A; who was heard knows it. The broadcast names the
    server's epoch, so whom it reaches with an older one starts again from h_i = 0. A client that lost its h_i says so
    with its next update, as nobody knows what of it is in hbar: the server then begins a new epoch with hbar = 0,
    in which everybody starts from h_i = 0. The differences of that round are those of the old epoch: they serve for
    the step of that round, the lost client's not, and are forgotten. So hbar is the mean of the h_i of its epoch,
    except while a loss is not told yet.

    >>> kept = Kept(np.array([[1.0], [3.0]]), np.array([2.0]), np.zeros(2, int), np.int32(0))
    >>> latest, first = np.array([[5.0], [9.0]]), np.array([True, False])
    >>> kept, change, counted = exchange(kept, latest, first, first)
    >>> kept.own.tolist(), kept.mean.tolist(), change[0].tolist(), counted.tolist()
    ([[5.0], [3.0]], [4.0], [4.0], [True, False])
    >>> kept = kept._replace(own=np.array([[0.0], [3.0]]), epoch=np.array([-1, 0]))  # client 0 lost its memory
    >>> kept, _, counted = exchange(kept, latest, first, first)
    >>> kept.own.tolist(), kept.mean.tolist(), counted.tolist(), kept.epoch.tolist(), int(kept.server_epoch)
    ([[0.0], [3.0]], [0.0], [False, False], [1, 0], 1)
    """
    kept = up_to_date(kept, receives)
    xp, zero = kept.own.__array_namespace__(), kept.mean * 0
    counted = reported & (kept.epoch == kept.server_epoch)
    lost = (reported & (kept.epoch < 0)).any()
    change = latest - kept.own
    after = Kept(
        select(reported, select(counted & ~lost, latest, zero), kept.own),
        xp.where(lost, zero, mean_with(kept.mean, change, counted)),
        xp.where(reported, kept.server_epoch + lost, kept.epoch),
        kept.server_epoch + lost,
    )
    return after, change, counted


def up_to_date(kept: Kept, receives: Array) -> Kept:
    """h_i = 0 for those whom the broadcast reaches with an older epoch; who lost its h_i stays with that."""
    outdated = receives & (kept.epoch >= 0) & (kept.epoch != kept.server_epoch)
    epoch = kept.mean.__array_namespace__().where(outdated, kept.server_epoch, kept.epoch)
    return kept._replace(own=select(outdated, kept.mean * 0, kept.own), epoch=epoch)


def mean_with(mean: Array, change: Array, counted: Array) -> Array:
    """hbar + (1/m) sum over those who count of u_i - h_i, [d]."""
    return mean + masked_sum(change, counted) / change.shape[0]


def forget_own(kept: Kept, lost: Array) -> Kept:
    """h_i is gone; the server learns of it with i's next update."""
    xp = kept.mean.__array_namespace__()
    return kept._replace(own=select(lost, kept.mean * 0, kept.own), epoch=xp.where(lost, -1, kept.epoch))
