"""Filters of pictures by transforms (notebook 62), and operators at their edges, judged against NumPy (65)."""
