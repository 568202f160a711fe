"""The page: what it says, that it is safe with ids from anywhere, and that a real browser shows it."""

from __future__ import annotations

import base64
import html
import io
import itertools
import os
import re
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import chromium
import numpy as np
import page_samples as samples
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from rich.console import Console

from fedpbc.audit import audit, figures, heat
from fedpbc.audit.page import QUESTIONS, render
from fedpbc.audit.statistics import expected_absences
from fedpbc.audit.svg import Labels, clean, shorten
from fedpbc.audit.terminal import report
from fedpbc.audit.types import Advice, Findings
from fedpbc.io.participation.log import ParticipationLog

NASTY = (
    "<script>alert(1)</script>",
    "&\"'`><img src=http://evil.example/x onerror=alert(1)>",
    "</svg></style></title>",
    "$\\frac{1}{0}$ %s {} @0@ @1@",
    "long-" + "x" * 5000,
    "wide-" + "\u6f22" * 300,
    "\u202eright to left\u202c",
    "line\nbreak\x00\x1b[31m",
    "lone \ud800 surrogate",
    "",
)
VOID = {"meta", "link", "br", "img", "hr", "input"}


def nasty_log() -> ParticipationLog:
    log = samples.two_groups(len(NASTY), 60)
    groups = [NASTY[1 if i % 2 else 0] for i in range(len(NASTY))]
    return replace(log, clients=list(NASTY), groups=groups, skipped={NASTY[0]: 3}, notes=(NASTY[1],), source=NASTY[0])


def nasty_findings(log: ParticipationLog) -> Findings:
    whole = samples.findings_of(log)
    drift = replace(whole.stationarity.drift, p_value=1e-9, drifting=NASTY, method=NASTY[0])
    return replace(
        whole,
        log=replace(whole.log, source=NASTY[1], format=NASTY[0]),
        participation=replace(whole.participation, never_seen=NASTY),
        stationarity=replace(whole.stationarity, drift=drift),
        advice=(Advice("x", NASTY[0], NASTY[1], "javascript:alert(1)", NASTY[0], "javascript:alert(1)"),),
    )


def tiny() -> ParticipationLog:
    return ParticipationLog.from_matrix(np.array([[True, False], [True, True]]))


LOGS = {
    "groups": samples.two_groups,
    "devices": lambda: samples.cross_device(2000, 1500),
    "counts": samples.counts_only,
    "nasty": nasty_log,
    "two": tiny,
}


def page_of(name: str) -> str:
    log = LOGS[name]()
    return render(nasty_findings(log) if name == "nasty" else samples.findings_of(log), log)


class Reader(HTMLParser):
    """Checks that tags are closed in order; keeps elements and the text that readers see."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += data


@pytest.mark.first(2)
@pytest.mark.parametrize("name", LOGS)
def test_is_one_sound_document_that_asks_for_nothing(name):
    page = page_of(name)
    page.encode("utf-8")
    reader = Reader(page)
    assert page.startswith("<!DOCTYPE html>")
    ids = [attrs["id"] for _, attrs in reader.elements if "id" in attrs]
    assert len(ids) == len(set(ids))
    for tag, attrs in reader.elements:
        assert tag not in ("script", "iframe", "object", "embed", "base", "form")
        assert not [key for key in attrs if key.startswith("on") or key in ("src", "srcset", "action", "xlink:href")]
        address = attrs.get("href") or "#"
        if tag == "a":
            assert address.startswith(("#", "https://example.org/"))
        else:
            assert address.startswith(("#", "data:"))
        if address.startswith("#") and len(address) > 1:
            assert address[1:] in ids
    style = page[page.index("<style>") : page.index("</style>")]
    assert "@import" not in style
    assert "url(" not in style
    inner = " ".join(value or "" for _, attrs in reader.elements for key, value in attrs.items() if key == "style")
    assert set(re.findall(r"url\(.", inner)) <= {"url(#"}
    assert "default-src 'none'" in page


@pytest.mark.first(2)
@pytest.mark.parametrize("name", LOGS)
def test_answers_five_questions_and_describes_every_picture(name):
    page = page_of(name)
    for i, question in enumerate(QUESTIONS, 1):
        assert f'<h2 id="q{i}">{i}. {question}</h2>' in page
    assert page.count("<figure>") == page.count("<figcaption>") == page.count('role="img" aria-label="')
    assert page.count("<figure>") == (1 if name == "counts" else 5)
    assert not re.findall(r"\b(?:nan|None|null|inf)\b", Reader(page).text)


def test_says_what_it_measured():
    text = Reader(page_of("groups")).text
    for said in ("40 clients", "500 rounds", "Very uneven", "of the weight in FedAvg sits on the wrong clients"):
        assert said in text
    for said in ("repeats every 24 rounds", "No drift found", "halves in 2 rounds", "89 rounds", "city", "rural"):
        assert said in text
    assert "Evidence: not known" in text


@pytest.mark.first(3)
@pytest.mark.parametrize("name", LOGS)
def test_tells_what_the_audit_finds(name):
    log = LOGS[name]()
    findings = audit(log)
    text = Reader(render(findings, log)).text
    assert clean(findings.advice[0].advice) in text
    assert not re.findall(r"\b(?:nan|None|null|inf)\b", text)


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (np.eye(3)[[0, 0, 0]], ["Whether rates drift was not tested", "could not be measured", "1 of 3"]),
        (np.eye(4)[[0, 1, 0, 1] * 20], ["2 groups that never meet", "their models would never all agree"]),
        (np.ones((200, 4)), ["halves in 1 round, ", "No cycle was found"]),
    ],
)
def test_says_what_cannot_be_known(table, said):
    log = ParticipationLog.from_matrix(table)
    text = Reader(render(audit(log), log)).text
    assert not re.findall(r"\b(?:nan|None|null|inf)\b", text)
    assert not [each for each in said if each not in text]


def always(m: int = 450, rounds: int = 700) -> ParticipationLog:
    """Nearly always there, so that the heat map's scale goes up to 100 %; two clients hardly ever."""
    table = np.random.default_rng(0).random((rounds, m)) < 0.999
    table[:, :2] = False
    table[3, 0] = table[699, 1] = True
    return ParticipationLog.from_matrix(table)


def crowd(rounds: int = 20_000) -> ParticipationLog:
    """Counts of millions."""
    empty = np.zeros(0, np.int32)
    counts = np.random.default_rng(0).poisson(3_000_000, rounds)
    return ParticipationLog([], rounds, 0, empty, empty, counts_only=counts)


def rare(m: int = 3000, rounds: int = 120_000) -> ParticipationLog:
    """Rates down to 1 in 120,000, and one client in every second round: weights a thousand times the fair share."""
    rng = np.random.default_rng(0)
    t, i = rng.integers(0, rounds, 9000), np.sort(rng.integers(1, m, 9000))
    keys = np.unique(np.concatenate([t.astype(np.int64) * m + i, np.arange(0, rounds, 2, dtype=np.int64) * m]))
    names = [f"client {k}" for k in range(m)]
    return ParticipationLog(names, rounds, 1, (keys // m).astype(np.int32), (keys % m).astype(np.int32))


def with_unknown() -> ParticipationLog:
    """Most rounds are unknown, some bins of the pictures whole."""
    table = np.random.default_rng(0).random((2000, 6)) < 0.4
    return ParticipationLog.from_matrix(table, unknown=[*range(3, 900), *range(1000, 1004), 1999])


EXTREMES = [always, crowd, rare, with_unknown, tiny]
CONVERSION = re.compile(r"\d[eE][+-]?\d|\b(?:nan|inf|None|null)\b|(?<![.\d])\d{5}|%%|(?<!\d)-0(?:\.0+)?(?![.\d])")
"""What a number that nobody formatted looks like: exponents, no number at all, five digits without a comma, -0."""


@pytest.mark.first(2)
@pytest.mark.parametrize("make", EXTREMES)
def test_every_number_is_written_for_readers(make):
    log = make()
    findings = audit(log)
    page = render(findings, log)
    console = Console(width=200, record=True, force_terminal=False, file=io.StringIO())
    console.print(report(findings))
    alts = " | ".join(re.findall('aria-label="([^"]*)"', page))
    for text in (re.sub("<style>.*?</style>|<[^>]*>", " ", page, flags=re.S), alts, console.export_text()):
        wrong = [text[max(match.start() - 40, 0) : match.end() + 20] for match in CONVERSION.finditer(text)]
        assert not wrong


def test_a_conversion_would_be_noticed(monkeypatch):
    monkeypatch.setattr(figures, "tick", lambda share: f"{100 * share:.2g}%")
    log = always()
    assert "1e+02%" in Reader(render(audit(log), log)).text
    assert CONVERSION.search("1e+02%")


def test_does_not_call_chance_uneven():
    rng = np.random.default_rng(3)
    log = ParticipationLog.from_matrix(rng.random((50, 30)) < 0.5)
    text = Reader(render(samples.findings_of(log), log)).text
    assert "Even: the differences between clients" in text
    assert "uneven:" not in text.lower()


def test_a_log_of_counts_says_what_it_cannot_say():
    text = Reader(page_of("counts")).text
    assert "Rates and weights of clients cannot be had from it" in text
    assert text.count("Cannot be said") == 6
    assert "other lines" in text


def test_text_from_the_log_is_text():
    page = page_of("nasty")
    assert "<script" not in page
    assert "<img" not in page
    assert html.escape(NASTY[0]) in page
    assert "javascript:" not in "".join(re.findall(r'href="[^"]*"', page))
    assert "\u202e" not in page
    assert "x" * 1001 not in page
    drawn = "".join(re.findall(r"<text[^>]*>([^<]*)</text>", page))
    for text in NASTY[:4]:
        assert html.escape(shorten(text, 16)) in drawn
    assert not re.search("@[0-9]+@", drawn.replace(shorten(NASTY[3], 16), ""))


def test_same_input_same_bytes(tmp_path):
    code = (
        "import sys, page_samples as s; from fedpbc.audit.page import render; log = s.two_groups(60, 300);"
        "sys.stdout.buffer.write(render(s.findings_of(log), log).encode())"
    )
    (tmp_path / "matplotlibrc").write_text("font.size: 20\nsvg.hashsalt: other\n")
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    pages = []
    for seed, folder in (("1", str(tmp_path)), ("2", None)):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": path}
        environment |= {"MATPLOTLIBRC": folder} if folder else {}
        run = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, check=True, timeout=600
        )
        pages.append(run.stdout)
    assert pages[0] == pages[1]
    log = samples.two_groups(60, 300)
    assert render(samples.findings_of(log), log).encode() == pages[0]


@pytest.mark.parametrize("groups", [None, "few", "many"])
@pytest.mark.parametrize(("m", "rounds"), [(7, 11), (400, 600), (1234, 701)])
def test_heat_cells_are_the_shares_of_active_pairs(monkeypatch, groups, m, rounds):
    monkeypatch.setattr(heat, "CHUNK", 1000)
    rng = np.random.default_rng(m)
    active = rng.random((rounds, m)) < rng.random(m) / 10
    active[0, 0] = True
    labels = None if groups is None else [str(k) for k in rng.integers(3 if groups == "few" else 100, size=m)]
    log = replace(ParticipationLog.from_matrix(active), groups=labels)
    order, segments = heat.order_clients(active.mean(0), labels)
    cells, row = heat.heat_cells(log, order, segments)
    assert cells.shape[0] <= heat.MAX_ROWS + heat.MAX_NAMED
    assert cells.shape[1] == min(rounds, heat.MAX_COLUMNS)
    column = np.arange(rounds) * cells.shape[1] // rounds
    for r, c in rng.integers(cells.shape, size=(50, 2)):
        assert cells[r, c] == pytest.approx(active[np.ix_(column == c, order[row == r])].mean())
    if groups == "few":
        assert all(len({labels[i] for i in order[row == r]}) == 1 for r in range(len(cells)))
    for name, start, stop in segments:
        rates = active.mean(0)[order[start:stop]]
        assert {labels[i] for i in order[start:stop]} == {name}
        assert np.all(np.diff(rates) <= 0)


def test_expected_absences_are_those_of_coin_flips():
    rounds, edges = 7, np.array([1, 2, 3, 5, 8])
    rate = np.array([0.3, 0.8, 0.0, 1.0])
    expected = np.zeros(4)
    for p, flips in itertools.product(rate, itertools.product([0, 1], repeat=rounds)):
        chance = np.prod([p if flip else 1 - p for flip in flips])
        lengths = [len(list(run)) for flip, run in itertools.groupby(flips) if not flip]
        expected += chance * np.histogram(lengths, edges)[0]
    np.testing.assert_allclose(expected_absences(edges, rate, rounds), expected, atol=1e-12)


def large_log(m: int, rounds: int, pairs: int) -> ParticipationLog:
    rng = np.random.default_rng(0)
    keys = np.unique(rng.integers(0, m * rounds, pairs))
    names = [f"device-{i}" for i in range(m)]
    return samples.log_of(keys // m, keys % m, names, rounds)


@pytest.mark.release
def test_a_large_log_takes_bounded_memory_and_little_time():
    log = large_log(100_000, 100_000, 3_000_000)
    rate = np.bincount(log.members, minlength=100_000) / 100_000
    tracemalloc.start()
    order, segments = heat.order_clients(rate, None)
    cells, _ = heat.heat_cells(log, order, segments)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert cells.shape == (400, 600)
    assert peak < 100e6
    log = large_log(100_000, 2_000, 1_000_000)
    findings = samples.findings_of(log)
    start = time.process_time()
    page = render(findings, log)
    assert time.process_time() - start < 300  # of computing, and a few seconds it is
    assert len(page) < 3e6


# In a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[chromium.Chromium]:
    path = chromium.find()
    if path is None:
        if os.environ.get("FEDPBC_REQUIRE_BROWSER") == "1":
            pytest.fail("FEDPBC_REQUIRE_BROWSER=1, but there is no Chromium")
        pytest.skip("no Chromium: the page is not opened in a browser")
    with chromium.Chromium(path) as opened:
        yield opened


def faults(visit: chromium.Visit, width: int) -> set[str]:
    """What is wrong with a page: console, requests, width, small, pale, clipped."""
    layout = visit.layout
    wide = layout["scroll"] > layout["width"] or layout["width"] > width or layout["overflowing"]
    found = {"console": visit.console, "requests": visit.requests, "width": wide}
    found |= {"small": layout["smallest_text"] < 9, "pale": layout["least_contrast"] < 4.5}
    found["clipped"] = layout["clipped"]
    return {name for name, wrong in found.items() if wrong}


@pytest.mark.first(2)
@pytest.mark.parametrize("name", LOGS)
def test_a_browser_shows_it_at_every_width_and_in_the_dark(browser, tmp_path, name):
    path = tmp_path / "page.html"
    path.write_text(page_of(name), encoding="utf-8")
    for width, dark in ((360, False), (360, True), (700, False), (800, True), (1200, False)):
        visit = browser.visit(path, width, dark)
        assert not faults(visit, width), (width, dark, visit)
        assert visit.layout["background"] == ("rgb(20, 24, 29)" if dark else "rgb(255, 255, 255)")


def test_a_browser_shows_unknown_rounds(browser, tmp_path):
    """As a grey band of the heat map, which is neither of the colours of known rounds, and as a gap of the line."""
    table = np.random.default_rng(0).random((300, 12)) < 0.5
    pages = [ParticipationLog.from_matrix(table, unknown=unknown) for unknown in ((), range(100, 140))]
    colours = []
    for log in pages:
        path = tmp_path / "page.html"
        path.write_text(render(audit(log), log), encoding="utf-8")
        for width in (360, 1200):
            assert not faults(browser.visit(path, width), width)
        png = re.search(r'href="data:image/png;base64,([^"]*)"', path.read_text(encoding="utf-8"))[1]
        image = (255 * imread(io.BytesIO(base64.b64decode("".join(png.split()))), format="png")).astype(int)
        colours.append({tuple(pixel) for pixel in image.reshape(-1, image.shape[-1])})
        band = image[:, int(0.36 * image.shape[1]) : int(0.44 * image.shape[1])]
        assert len({tuple(pixel) for pixel in band.reshape(-1, image.shape[-1])}) == (2 if log is pages[0] else 1)
    assert len(colours[1] - colours[0]) == 1


@pytest.mark.release
@pytest.mark.parametrize(
    ("fault", "old", "new"),
    [
        ("console", "</main>", "<script>console.log(1)</script></main>"),
        ("console", "default-src 'none'", "default-src 'none'; no-such-directive x"),
        ("console", "</main>", '<img alt="" src="data:image/png;base64,AA"><img alt="" src="nowhere.png"></main>'),
        ("requests", "default-src 'none'; style-src 'unsafe-inline'; img-src data:", "img-src *"),
        ("requests", "default-src 'none'; style-src 'unsafe-inline'", "style-src *"),
        ("width", "</main>", '<div style="width:400px">wide</div></main>'),
        ("width", "width=device-width, initial-scale=1", "width=980"),
        ("width", "overflow-wrap:anywhere", "overflow-wrap:normal"),
        ("width", ".scroll{overflow:auto", ".scroll{overflow:visible"),
        ("small", "@media(max-width:760px)", "@media(max-width:20px)"),
        ("clipped", "svg text{", "svg text{letter-spacing:4px;"),
        ("pale", "--ink:#1c2127", "--ink:#aaa"),
    ],
)
def test_the_browser_test_notices(browser, tmp_path, fault, old, new):
    page = page_of("nasty" if old.startswith("overflow") else "groups")
    assert old in page
    page = page.replace(old, new)
    if fault == "requests":
        page = page.replace("</main>", '<img alt="" src="http://evil.example/x.png"></main>').replace(
            "<style>", '<link rel="stylesheet" href="https://evil.example/x.css"><style>'
        )
    path = tmp_path / "page.html"
    path.write_text(page, encoding="utf-8")
    assert fault in faults(browser.visit(path, 360), 360)


def test_it_notices_errors_of_scripts(browser, tmp_path):
    path = tmp_path / "page.html"
    for script in ("console.error('x')", "throw new Error('x')", "setTimeout(() => { null.x }, 100)"):
        path.write_text(f'<meta name="viewport" content="width=device-width"><p>x</p><script>{script}</script>')
        assert faults(browser.visit(path, 360), 360) == {"console"}


@pytest.mark.release
def test_the_browser_ends_when_a_test_fails(browser):
    def use_and_fail():
        with chromium.Chromium(chromium.find()) as other:
            other.visit(Path(__file__), 360)
            groups.append(other.process.pid)
            profiles.append(Path(other.profile))
            raise ZeroDivisionError

    groups: list[int] = []
    profiles: list[Path] = []
    with pytest.raises(ZeroDivisionError):
        use_and_fail()
    assert not chromium.living(groups[0])
    assert not profiles[0].exists()


@pytest.mark.release
def test_the_curve_without_memory_stays_inside_its_picture(monkeypatch):
    """Independent rounds would give many short absences where memory leaves few long ones."""
    drawn = []
    monkeypatch.setattr(figures, "drawings", lambda name, draw, height: drawn.append(draw) or {})
    log = ParticipationLog.from_matrix(np.repeat(np.random.default_rng(0).random((40, 10)) < 0.5, 10, axis=0))
    found = audit(log).participation
    figures.absences(found.absence_histogram.edges, found.absence_histogram.counts, found.rate, log)
    figure = Figure()
    drawn[0](figure, Labels())
    (axes,) = figure.axes
    curve = axes.lines[0].get_ydata()
    assert np.nanmax(curve) > 3 * found.absence_histogram.counts.max()
    assert axes.get_ylim()[1] > np.nanmax(curve)
