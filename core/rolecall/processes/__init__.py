"""Child processes that serve requests (engines, routers): bound to their parent's life, ended with proof."""
