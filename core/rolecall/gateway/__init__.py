"""The HTTP front of a role: one class for all roles, mounted at ``/{role}``."""
