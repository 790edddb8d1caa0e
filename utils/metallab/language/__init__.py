"""A small language model: its text, its network, what it needs in memory and how it writes.

Notebooks 30 to 32 are about it; 10 and 11 move a script of it as one finds it on the web.
"""
