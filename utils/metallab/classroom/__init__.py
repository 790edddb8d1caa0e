"""What a teacher sees of a class: who solved which exercise, and slips to log in with.

The hub of a class, in the folder ``classroom`` of the checkout, serves it.
"""
