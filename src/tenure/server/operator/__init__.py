"""Routes for people who operate queues."""
