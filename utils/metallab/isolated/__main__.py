"""``python -m metallab.isolated FOLDER``: the child of `metallab.isolated.run`."""

from __future__ import annotations

import sys

from metallab.isolated.child import main

if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
