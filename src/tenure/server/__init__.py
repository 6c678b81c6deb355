"""The HTTP service: a queue for other machines and other languages."""
