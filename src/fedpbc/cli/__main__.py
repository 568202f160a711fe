"""``python -m fedpbc.cli``."""

from fedpbc.cli import main

if __name__ == "__main__":
    main()
