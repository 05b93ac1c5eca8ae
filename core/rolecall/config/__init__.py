"""From a TOML job file to frozen, checked values."""
