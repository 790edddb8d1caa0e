"""What lessons with MLX need (notebook 14): its Metal kernels where there is no Metal."""
