"""The site: it builds strictly, loads nothing from elsewhere, and a link that leads nowhere is found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT, environment

pytest.importorskip("mkdocs")
pytest.importorskip("material")


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(site)]
    env = {**environment(), "NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT, folder)
    assert done.returncode == 0, done.stderr
    return folder


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site):
    loads = re.compile(
        r'<(?:script|img|iframe|source)\b[^>]*\bsrc="?(?:https?:)?//|<link\b(?![^>]*canonical)[^>]*href="?(?:https?:)?//'
    )
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > 50
    assert loads.search('<script src="https://unpkg.com/x"></script>')
    for page in pages:
        assert not loads.search(text_of(page)), page
    for style in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(?:https?:)?//", text_of(style)), style


@pytest.mark.slow
def test_links_out_of_docs_lead_to_pages_of_the_site(site):
    page = text_of(site / "contributing.html")
    assert 'href="source/docs/skeletons/algorithm.py.html"' in page
    assert "def round_(" in re.sub(r"<[^>]+>", "", text_of(site / "source/docs/skeletons/algorithm.py.html"))
    assert 'href="experiments.html"' in text_of(site / "index.html")


@pytest.mark.slow
def test_the_reference_shows_components_as_they_are_called(site):
    page = re.sub(r"<[^>]+>", "", text_of(site / "api/links.html"))
    assert "memory: Fraction" in page
    assert "context" not in page.partition("markov")[2].partition("outages")[0]
    theory = re.sub(r"<[^>]+>", "", text_of(site / "api/theory.html"))
    assert "&lt;= beta^2" in theory
    assert "\\&lt;" not in theory


@pytest.mark.release
@pytest.mark.slow
def test_a_link_that_leads_nowhere_ends_the_build(tmp_path):
    for name in ("docs", "examples", "src"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE", "mkdocs.yml"):
        shutil.copy(ROOT / name, tmp_path / name)
    page = tmp_path / "docs" / "howto" / "tune.md"
    page.write_text(text_of(page) + "\n[gone](../../examples/no_such_file.py)\n")
    done = build(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "no_such_file.py" in done.stderr


def test_docstrings_keep_their_signs_as_markdown():
    sys.path.insert(0, os.fspath(ROOT / "docs"))
    try:
        from site_api import as_markdown
    finally:
        sys.path.pop(0)
    assert as_markdown("||x|| <= a*b of ``x*y <z>`` [m, d]") == "||x|| &lt;= a\\*b of ``x*y <z>`` \\[m, d]"
    assert (
        as_markdown("a: one. b, ``c``: two; a: x.", ["a", "b", "c"]) == "* `a`: one.\n\n* b, ``c``: two;\n\n* `a`: x."
    )
    assert as_markdown("Rule.\n\n>>> f(1)\n2") == "Rule.\n\n```pycon\n>>> f(1)\n2\n```"
