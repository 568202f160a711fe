"""``python -m fedpbc``."""

from fedpbc.cli import main

if __name__ == "__main__":
    main()
