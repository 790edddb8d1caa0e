"""Filters of pictures by transforms, judged against NumPy (notebook 11)."""
