"""Routes for people who operate queues, one module for each capability."""

from tenure.server.operator import editing, lists, why

ROUTES = [
    *lists.ROUTES,
    *editing.ROUTES,
    *why.ROUTES,
]
