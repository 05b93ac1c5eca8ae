"""Deliberate bugs, one a guard of the product, and whether the simulation notices each.

``mutants.py`` lists them, ``hunt.py`` plays schedules until one breaks; ``mutate.py`` beside this folder
prints the table.
"""
