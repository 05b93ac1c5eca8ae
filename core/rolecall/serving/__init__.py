"""Serving: one HTTP/1.1 connection of a caller, strict and bounded, under any ASGI app."""
