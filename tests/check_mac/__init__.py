"""What can be proved of a Mac on Linux: `make check-mac` reads the wheels that a Mac would install, and runs nothing.

`wheels` finds and fetches them, `macho` reads their libraries, `pyobjc` the names that Python can use there, `checks`
holds what is found against what this project says. It belongs to the tests because nobody imports it, and because it
takes packages that only development needs.
"""
