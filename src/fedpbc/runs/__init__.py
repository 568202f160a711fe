"""Running an experiment, what it leaves behind, and reading it."""
