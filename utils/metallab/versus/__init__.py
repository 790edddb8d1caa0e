"""Is B slower than A? Two live processes, asked in turns for one sample of the same work (``metallab versus A B``).

`metallab.versus.lockstep` says how, and why a few per cent can be seen on a restless machine. What is timed is a
function marked as a `case`.
"""

from metallab.versus.cases import case

__all__ = ["case"]
