"""Apple's Core AI, which wants NumPy 2: importing this puts ``.venv-coreai`` in front of this environment (page 09c).

Import it before NumPy and PyTorch, which is what notebook 09c begins with. ImportError with the command that installs
Core AI where it is missing, or where another NumPy was imported already.
"""

import os
import sys

from metallab import needs

if not needs.has_core_ai():
    raise ImportError(f"Core AI is not installed: {needs.CORE_AI}")
if "numpy" in sys.modules and str(needs.core_ai_folder()) not in sys.path:
    raise ImportError("NumPy was imported already: restart Python, and import metallab.coreai first")
sys.path.insert(0, str(needs.core_ai_folder()))
if (terminal := getattr(sys.stderr, "_original_stdstream_copy", None)) is not None:
    os.dup2(terminal, 2)  # what the run time writes with each function that it loads is not for a notebook's page

import coreai.authoring  # noqa: F401  # 1.0.0b3 cannot be imported in another order
import rich

rich.get_console().quiet = True  # that a program is converted
