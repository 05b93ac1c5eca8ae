"""Asking engines: transport, one exchange from send to proven end, and the direct client."""
