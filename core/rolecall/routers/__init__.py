"""Routers of models: who is told of which engine, and who keeps the router alive."""
