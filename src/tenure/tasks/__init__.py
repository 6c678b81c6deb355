"""Functions that are enqueued by calling them."""
