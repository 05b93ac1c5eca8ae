"""First-party routing policies, one file a policy."""
