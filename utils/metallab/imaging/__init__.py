"""Filters of pictures by transforms (notebook 11), and operators at their edges, judged against NumPy (11b)."""
