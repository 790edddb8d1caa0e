"""``python -m metallab.headless``."""

import sys

from metallab.headless.cli import main

if __name__ == "__main__":
    sys.exit(main())
