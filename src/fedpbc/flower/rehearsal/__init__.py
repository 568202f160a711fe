"""Trying an app without a network: a grid inside one process, and links that fail as recorded."""
