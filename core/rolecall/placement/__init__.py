"""Which bundles each replica gets: on paper first, then proved on the real bundles."""
