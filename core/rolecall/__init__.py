"""rolecall: every inference role of an RL post-training job on one plane.

Plugin authors import ``rolecall.api``; training loops import ``rolecall.train`` and
``rolecall.job``. Everything else is internal. Importing this package imports neither Ray nor
any engine.
"""

__version__ = "0.1.0"
