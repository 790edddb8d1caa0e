"""A small language model: its text, its network, what it needs in memory, how it writes (notebooks 30 to 32), and a script of it as found on the web (10, 11)."""
