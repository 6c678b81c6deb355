"""The service: the queue over HTTP, for other languages and other machines."""
