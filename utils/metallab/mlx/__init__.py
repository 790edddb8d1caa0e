"""What lessons about MLX share beyond the frameworks."""
