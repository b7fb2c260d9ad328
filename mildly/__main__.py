"""`python -m mildly`: the command where its script is not on the path."""

import sys

from mildly.cli import main

if __name__ == "__main__":
    sys.exit(main())
