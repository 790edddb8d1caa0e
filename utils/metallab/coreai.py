"""Put Apple's Core AI, and the NumPy that it wants, in front of this environment: import it first (notebook 42)."""

import os
import sys

from metallab.needs import CORE_AI, TOOLS

if not TOOLS["coreai"].is_here():
    raise ImportError(f"Core AI is not installed: {TOOLS['coreai'].fix()}")
if "numpy" in sys.modules and str(CORE_AI) not in sys.path:
    raise ImportError(
        "NumPy was imported already: restart Python, and import metallab.coreai first"
    )
sys.path.insert(0, str(CORE_AI))
if (terminal := getattr(sys.stderr, "_original_stdstream_copy", None)) is not None:
    os.dup2(
        terminal, 2
    )  # what the run time writes with each function that it loads is not for a notebook's page
