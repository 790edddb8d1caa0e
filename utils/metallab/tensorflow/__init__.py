"""What lessons with TensorFlow need (notebooks 53 and 54)."""
