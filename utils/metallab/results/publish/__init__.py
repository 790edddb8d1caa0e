"""How executed pages are published: read, made plain, stored in the repository, and listed in the gallery."""
