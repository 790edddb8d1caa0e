"""What lessons with JAX need (notebook 07)."""
