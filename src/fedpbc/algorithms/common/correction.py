"""Local training along corrected gradients, grad l_i + shift_i: inside every step, or around a black box."""

from __future__ import annotations

from typing import Literal

from fedpbc.core.types import Array, Round

Apply = Literal["every_step", "around"]


def corrected_training(round: Round, start: Array, shift: Array, around: Array) -> Array:
    """s local steps of every client that computes, from ``start`` [m, d], corrected by ``shift`` [m, d]; -> [m, d].

    every_step (``around`` = 0): x <- x - eta (grad l_i(x; xi) + shift_i); the client lets us into its step.
    around (``around`` = 1): the client trains as it always does, from start - eta (s-1)/2 shift_i, and eta (s+1)/2
    shift_i is taken off the result. Where grad = -shift, the s gradients are then taken at points whose mean is the
    start itself, but for O((eta s)^2): the fixed points differ by that much, and not at all when s = 1 or when all
    clients have one constant curvature. Correcting the result alone would leave O(eta s), the drift of FedAvg. With
    momentum of the clients (s-1)/2 is M and (s+1)/2 is S - M of ``Descent.way``.
    """
    before = round.steps_before(start.dtype)
    one = around * round.learning_rate * shift * round.computes[:, None]
    trained = round.train(start - before * one, shift=(1 - around) * shift)
    return trained - (round.steps(start.dtype) - before) * one
