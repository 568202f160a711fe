"""The server: whom it asks what, which replies count, what is kept; it knows no method by name."""
