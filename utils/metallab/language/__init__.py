"""A small language model: its text, its network, what it needs in memory, and how it writes (notebooks 30 to 32).

`decoder` is the model, called the writer. `found` is the same network and weights as a script that has four faults,
written as one finds them on the web, and `repaired` that script with its faults repaired (10, 11).
"""
