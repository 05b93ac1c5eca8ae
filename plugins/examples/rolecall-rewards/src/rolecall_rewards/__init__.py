"""Reward adapters for rolecall: one module each, imported only when a job file selects it."""
