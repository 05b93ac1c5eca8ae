"""One engine lifecycle core for all roles."""
