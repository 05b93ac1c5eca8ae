"""Plugins: entry points are the registry, pluggy is the hook machinery."""
