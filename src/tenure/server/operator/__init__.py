"""Routes for people who operate queues, one module for each capability."""

from tenure.server.operator import audit, bulk, editing, errors, lists, rates, why, workers

ROUTES = [
    *lists.ROUTES,
    *editing.ROUTES,
    *bulk.ROUTES,
    *why.ROUTES,
    *workers.ROUTES,
    *errors.ROUTES,
    *audit.ROUTES,
    *rates.ROUTES,
]
