"""What lessons with MLX need (notebook 14)."""
