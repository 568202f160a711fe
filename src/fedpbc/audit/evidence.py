"""Where the evidence of a rule can be read: a section of docs/results.md, as a link where the documentation is
published."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, metadata

ANCHORS = {
    "1": "1-the-counterexample-fig-2",
    "2": "2-synthetic11-under-zipf-links-fig-3",
    "3": "3-is-there-a-reading-of-the-paper-under-which-fig-3-holds",
    "4": "4-synthetic11-when-links-depend-on-the-data",
    "5": "5-all-methods-under-every-kind-of-link",
    "6": "6-on-fresh-seeds-links-with-memory",
}
"""Section of docs/results.md -> its anchor in the site."""


def site() -> str | None:
    """The published documentation, ``Documentation`` of the package's project URLs; None where there is none."""
    try:
        urls = metadata("fedpbc").get_all("Project-URL") or []
    except PackageNotFoundError:
        return None
    for entry in urls:
        name, _, url = entry.partition(",")
        if name.strip().lower() == "documentation" and url.strip().startswith("https://"):
            return url.strip().rstrip("/")
    return None


def link_of(evidence: str) -> str | None:
    """The address of ``docs/results.md, section 5 (...)``; None of what is no page, or where nothing is published."""
    home = site()
    if home is None or not evidence.startswith("docs/results.md"):
        return None
    number = next((letter for letter in evidence.partition("section")[2] if letter.isdigit()), "")
    return f"{home}/results.html" + (f"#{ANCHORS[number]}" if number in ANCHORS else "")
