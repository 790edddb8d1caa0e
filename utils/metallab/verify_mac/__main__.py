"""``python -m metallab.verify_mac``."""

import sys

from metallab.verify_mac.cli import main

if __name__ == "__main__":
    sys.exit(main())
