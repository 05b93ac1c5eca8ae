"""From a request's selectors to one target: pure, the same in gateways and direct clients."""
