"""Matplotlib figures as parts of a page: inline SVG in the page's colours and font, for a desk and for a phone.

No text from a log enters Matplotlib: it draws tokens, and the finished SVG gets the escaped text in their place. So ids
cannot be taken for mathematics or markup, and need no glyph in Matplotlib's fonts.
"""

from __future__ import annotations

import html
import io
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from matplotlib import style
from matplotlib.figure import Figure

from fedpbc.plots.palette import COLORS

INK, LINE = "#010203", "#010204"
"""Stand for the page's text colour and the colour of its rules."""
WIDTHS = {"wide": 7.3, "narrow": 3.4}
"""Inches. Shown at 736 and at 340 pixels of the page, so that text has the same size in both."""
NO_NAME = "(empty)"
"""Shown for an id without characters."""


@dataclass(frozen=True)
class Picture:
    """One picture: its drawings by name of WIDTHS, what it shows (for who cannot see it) and what one sees."""

    drawings: dict[str, str]
    alt: str
    caption: str


def clean(text: object) -> str:
    """Text from a log without control, format (bidirectional overrides) and surrogate characters.

    >>> clean(chr(0x202E) + "a" + chr(0))
    '�a�'
    """
    return "".join("\ufffd" if unicodedata.category(c) in ("Cc", "Cf", "Cs") else c for c in str(text))


def shorten(text: str, limit: int) -> str:
    """At most ``limit`` characters, cut in the middle: ids often differ at their end.

    >>> shorten("0123456789", 7)
    '012…789'
    """
    half = (limit - 1) // 2
    return text if len(text) <= limit else f"{text[: limit - 1 - half]}…{text[-half:]}"


class Labels:
    """Tokens for texts from the log, and the texts back in their place."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def token(self, text: object, limit: int = 16) -> str:
        """What Matplotlib draws (and measures) for a text: about as wide."""
        shown = shorten(clean(text) or NO_NAME, limit)
        self.texts.append(shown)
        width = sum(1 + (unicodedata.east_asian_width(c) in "WF") for c in shown)
        return f"@{len(self.texts) - 1:0{max(width - 2, 1)}d}@"

    def fill(self, svg: str) -> str:
        """The drawing with the texts, escaped."""
        return re.sub(r"@(\d+)@", lambda match: html.escape(self.texts[int(match[1])]), svg)


def drawings(name: str, draw: Callable[[Figure, Labels], None], height: float | dict[str, float]) -> dict[str, str]:
    """Draw once for each of WIDTHS, the same bytes for the same log: variant -> SVG; heights in inches."""
    colors = dict.fromkeys(("text.color", "axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), INK)
    lines = dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color"), LINE)
    sizes = {"font.size": 8.5, "axes.labelsize": 8.5, "xtick.labelsize": 8, "ytick.labelsize": 8, "axes.linewidth": 0.7}
    clear = dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor"), "none")
    fixed = {"svg.hashsalt": f"fedpbc {name}", "svg.fonttype": "none", "svg.image_inline": True}
    drawn = {}
    with style.context(["default", colors | lines | sizes | clear | fixed]):
        for variant, width in WIDTHS.items():
            labels = Labels()
            tall = height[variant] if isinstance(height, dict) else height
            figure = Figure(figsize=(width, tall), layout="constrained")
            draw(figure, labels)
            buffer = io.BytesIO()
            figure.savefig(buffer, format="svg", dpi=72, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
            drawn[variant] = labels.fill(inline(buffer.getvalue().decode(), f"{name}-{variant}"))
    return drawn


def inline(svg: str, prefix: str) -> str:
    """Matplotlib's SVG as a part of a page: no header, ids of its own, the page's colours and font."""
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", svg, flags=re.S)
    box = re.search(r'viewBox="[^"]*"', svg)
    assert box is not None
    svg = f'<svg class="{prefix.rsplit("-", 1)[1]}" {box[0]} aria-hidden="true">' + svg[svg.index(">") + 1 :]
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{prefix}-", svg)
    svg = svg.replace("xlink:href", "href")
    svg = re.sub(r"font-family: [^;\"]*;? ?", "", svg)
    svg = re.sub(r' transform="rotate\(-0 [^)]*\)"', "", svg)
    names = {INK: "ink", LINE: "line"} | {color.lower(): f"c{i}" for i, color in enumerate(COLORS[:-1])}
    for color, variable in names.items():
        svg = svg.replace(color, f"var(--{variable})")
    return re.sub(r"\n\s*", "\n", svg)
