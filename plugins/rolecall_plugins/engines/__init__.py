"""Engine backends, one subpackage each, and what any backend can share.

``http_control`` speaks SGLang's control protocol, ``controlled`` is what engines over it have in common,
``attached`` is one that somebody else runs. A backend imports ``rolecall.api`` only, and its module imports
neither NumPy nor an inference runtime: those belong to the engine's own process.
"""
