"""``math_verify``: whether a response gives the reference answer as mathematics, by the package math-verify.

``adapter`` is the plugin, ``workers`` its processes, ``worker`` what runs in each of them.
"""
