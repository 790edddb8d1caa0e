"""PyTorch on MPS: what runs there, what happened, number formats, and operators of our own (notebooks 10 to 16)."""
