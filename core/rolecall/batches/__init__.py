"""The deferred batch: generate, score stage by stage, validate, publish, commit."""
