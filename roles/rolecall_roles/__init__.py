"""First-party roles, one package each. Each uses ``rolecall.api`` only and could live elsewhere."""
