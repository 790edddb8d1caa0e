"""A small language model: its text, its network, what it needs in memory, and how it writes (notebooks 30 to 32)."""
