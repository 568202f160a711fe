"""``fedpbc tune``: the settings of every method, chosen alike: a stated grid, an equal budget, seeds of their own."""
