"""How figures look and how they are saved. Imports nothing of the simulator, so that edge devices can draw."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from fedpbc.io.whole import replacing


class Picture(Figure):
    """A figure that a notebook shows, also when pyplot was never imported."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png", dpi=100)
        return buffer.getvalue()


def save(figure: Figure, folder: Path, stem: str) -> None:
    """Write ``stem``.png and ``stem``.svg, the same bytes for the same figure. It is laid out once, for both."""
    with own_style({"svg.hashsalt": "fedpbc", "svg.fonttype": "path"}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a label may use any script
        layout = figure.get_layout_engine()
        if layout is not None:
            layout.execute(figure)
            figure.set_layout_engine("none")
        for suffix, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
            with replacing(folder / f"{stem}.{suffix}") as temporary:
                figure.savefig(temporary, format=suffix, dpi=150, metadata=metadata)


@contextmanager
def own_style(settings: Any) -> Iterator[None]:
    """Matplotlib's defaults, whatever the user's own settings file says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(settings)
        yield
