"""The detector that notebooks 08 and 08b use."""
