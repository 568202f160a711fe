"""HTML for the page: its colours, tables, figures, and how ids are written."""

from __future__ import annotations

import html
from collections.abc import Sequence

from fedpbc.audit.svg import NO_NAME, Picture, clean, shorten

MAX_LISTED = 20
"""Ids in a sentence."""
ID_LENGTH = 64
"""Characters of an id that are shown."""
STYLE = """
:root{color-scheme:light dark;--bg:#fff;--ink:#1c2127;--muted:#57606a;--line:#d4d9df;--card:#f4f6f8;
--sans:system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;
--c0:#d55e00;--c1:#0072b2;--c2:#009e73;--c3:#cc79a7;--c4:#e69f00;--c5:#56b4e9;--c6:#555}
@media(prefers-color-scheme:dark){:root{--bg:#14181d;--ink:#e4e8ec;--muted:#9ba5b0;--line:#39424c;--card:#1d232a;
--c0:#ff8b3d;--c1:#4aa8e8;--c2:#2cc79b;--c3:#e39bc4;--c4:#f0b429;--c5:#7cc7f2;--c6:#aab2bb}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%;text-size-adjust:100%}
body{margin:0 auto;max-width:48rem;padding:1rem 1rem 4rem;background:var(--bg);color:var(--ink);
font:1rem/1.55 var(--sans);overflow-wrap:anywhere}
h1{font-size:1.6rem;line-height:1.2;margin:.5rem 0}
h2{font-size:1.25rem;line-height:1.3;margin:2.8rem 0 .6rem;padding-top:.8rem;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:1.4rem 0 .3rem}
a{color:var(--c1)}
.muted,figcaption,.tiny{color:var(--muted);font-size:.875rem}
.answer{border-left:4px solid var(--c1);background:var(--card);padding:.6rem .9rem;margin:.6rem 0;font-weight:600}
.warn{border-left-color:var(--c0)}
.short{padding:0;list-style:none;background:var(--card);border-radius:.4rem;margin:1rem 0}
.short li{padding:.6rem .9rem;border-bottom:1px solid var(--line)}
.short li:last-child{border:0}
.short a{display:block;font-size:.875rem}
figure{margin:1.2rem 0}
figcaption{margin-top:.2rem}
svg{display:block;width:100%;height:auto}
svg text{font-family:var(--sans)}
svg *{stroke-linejoin:round;stroke-linecap:butt}
.narrow{display:none;max-width:28rem}
@media(max-width:760px){.wide{display:none}.narrow{display:block}}
.scroll{overflow:auto;max-height:32rem;max-width:100%;margin:.4rem 0 1rem}
table{border-collapse:collapse;width:100%;font-size:.875rem}
th,td{padding:.3rem .5rem;border-bottom:1px solid var(--line);text-align:right;vertical-align:top;white-space:nowrap}
th:first-child,td:first-child{text-align:left;white-space:normal;min-width:7rem;padding-left:0}
thead th{border-bottom:2px solid var(--line);white-space:normal;overflow-wrap:normal}
code,.id{font-family:ui-monospace,"DejaVu Sans Mono",monospace;font-size:.92em;font-weight:400}
.advice{background:var(--card);border-left:4px solid var(--c2);padding:.6rem .9rem;margin:.8rem 0}
.advice p{margin:.2rem 0}
summary{cursor:pointer}
"""


def figure(picture: Picture) -> str:
    """A picture with its alternative text and caption."""
    alt = html.escape(picture.alt)
    return (
        f'<figure><div role="img" aria-label="{alt}">{"".join(picture.drawings.values())}</div>'
        f"<figcaption>{html.escape(picture.caption)}</figcaption></figure>\n"
    )


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Cells are HTML."""
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    label = f' aria-label="{html.escape(title or heads[0])}"'
    rows_of = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    heading = f"<h3>{title}</h3>" if title else ""
    return f'{heading}<div class="scroll" tabindex="0" role="region"{label}>{rows_of}</div>\n'


def paragraph(text: str) -> str:
    """A paragraph; ``text`` is HTML."""
    return f"<p>{text}</p>\n"


def client_id(client: object) -> str:
    """An id (or group) of the log, escaped and cut; the whole one is its tooltip."""
    text = clean(client) or NO_NAME
    whole = f' title="{html.escape(text[:1000])}"' if len(text) > ID_LENGTH else ""
    return f'<bdi class="id"{whole}>{html.escape(shorten(text, ID_LENGTH))}</bdi>'


def client_ids(clients: Sequence[object]) -> str:
    """The first ids, and how many more there are."""
    more = len(clients) - MAX_LISTED
    text = ", ".join(map(client_id, clients[:MAX_LISTED]))
    return f"{text} and {more:,} more, in audit.json" if more > 0 else text


def evidence(source: str, link: str | None = None) -> str:
    """What supports an advice, with a link to where it can be read."""
    text, target = clean(source), clean(link or source)
    if target.startswith(("https://", "http://")):
        return f'<a rel="noreferrer" href="{html.escape(target)}">{html.escape(text)}</a>'
    return html.escape(text)
