"""What lessons with TensorFlow need (notebooks 06 and 06b)."""
