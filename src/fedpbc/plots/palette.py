"""The colours of all figures. Imports nothing, so that the audit can use them without JAX."""

from __future__ import annotations

COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#4400DD", "#000000")
"""Okabe and Ito's palette with an indigo for their yellow: told apart also by colour-blind readers, and no grey, which
legends use."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""One for each colour."""
RESERVED = {"fedavg": COLORS[0], "fedpbc": COLORS[1]}
"""The two methods that every figure is about look the same in all of them."""
PREFERRED = {**RESERVED, "scaffold": COLORS[2], "mifa": COLORS[3], "fedau": COLORS[4], "fedpbc_corrected": COLORS[5],
             "fedvarp": COLORS[6], "fedavg_all": COLORS[7]}  # fmt: skip
"""A method that is alone of its name in a figure has this colour, whatever its options, where no other needs it."""
