"""A small language model: its text, its network, what it needs in memory, and how it writes (notebooks 30 to 32).

`found` is the same model as a script from the web, and `repaired` that script after its faults were mended (10, 11).
"""
