"""What the Flower tests share."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def no_power_cuts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers are killed here, machines are not: waiting for a disk would only take time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
