"""The detector that notebooks 60 and 61 use."""
