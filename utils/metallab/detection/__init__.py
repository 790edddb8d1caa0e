"""Finding things in pictures: scenes, the detector trained on them, its runs shown and compared (notebook 08)."""
