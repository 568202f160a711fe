"""Follow a directory: what is new, on the terminal, into files, and as lines for a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from fedpbc.io.whole import write_text
from fedpbc.operation import prometheus
from fedpbc.operation.alerts import Alerts, Limits
from fedpbc.operation.follow import Logs
from fedpbc.operation.standing import Standing
from fedpbc.operation.views import page


class Watch:
    """One directory, from its first line on. Raises ConfigError when there is none."""

    def __init__(
        self, directory: Path, limits: Limits, out: Path | None = None, metrics: Path | None = None, every: float = 5.0
    ) -> None:
        """``out``: the HTML file; ``metrics``: Prometheus' file; both are written beside and renamed."""
        self.logs, self.out, self.metrics, self.every = Logs(directory), out, metrics, every
        self.standing, self.alerts = Standing(), Alerts(limits)

    def look(self, clock: Callable[[], float] = time.time) -> list[str]:
        """Read what is new and write the files; the lines of alerts that were raised or are over."""
        if self.logs.begun_anew():
            self.standing = Standing()
        for line, heard in self.logs.rounds():
            self.standing.add(line, heard)
        now = clock()
        said = self.alerts.look(self.standing, now)
        if self.out is not None:
            title = self.logs.directory.resolve().name
            write_text(self.out, page(self.standing, self.raised(), title, self.every, now))
        if self.metrics is not None:
            write_text(self.metrics, prometheus.text(self.standing, self.alerts.counts()))
        return said

    def raised(self) -> list[str]:
        """The alerts that are raised now."""
        return [f"{code} {text}" for (code, _), text in self.alerts.raised.items()]
