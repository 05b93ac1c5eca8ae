"""Evaluations: what the policy answers to given prompts now, and what the rewards say of it."""
