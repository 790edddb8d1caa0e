"""From a trained network to a fast answer: MPSGraph, packages, converters, int8, parity (notebooks 09 to 11)."""
