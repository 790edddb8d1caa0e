"""Finding things in pictures: scenes, the detector trained on them, its runs compared (notebooks 08 and 08b)."""
