"""Files: written whole or not at all, read with one clear line when something is wrong."""
