"""The conformance kit: what every component of ours is tested with, for yours."""
