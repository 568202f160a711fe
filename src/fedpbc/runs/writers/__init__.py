"""Callbacks that hand metrics to other tools; each needs an extra of its own."""

from __future__ import annotations
