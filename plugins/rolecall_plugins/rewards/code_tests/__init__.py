"""``code_tests``: the share of tests that the program in a response passes, run in a sandbox.

``adapter`` is the plugin. ``sandbox`` starts one supervisor for a program; ``supervisor`` runs in that
process and forks one confined child for each test; ``confinement`` is what a child does to itself. The last
two use the standard library only: they run in an isolated interpreter without site-packages.
"""
