"""A role that runs generated programs against unit tests.

Imports nothing: the confined child imports this package, too.
"""
