"""What lessons with JAX need (notebooks 07 and 07b)."""
