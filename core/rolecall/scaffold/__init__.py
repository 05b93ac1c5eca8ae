"""``rolecall plugins new``: writes a distribution that holds one plugin, from templates in the wheel."""
