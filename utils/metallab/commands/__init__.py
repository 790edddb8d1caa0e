"""What the command ``metallab`` does that belongs to no other room; `metallab.__main__` lists all of it."""
