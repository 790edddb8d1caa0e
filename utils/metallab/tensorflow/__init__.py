"""What lessons with TensorFlow need (notebook 06)."""
