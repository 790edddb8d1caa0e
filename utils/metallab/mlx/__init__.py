"""What lessons with MLX need (notebook 50): its Metal kernels where there is no Metal."""
