"""Routes for people who operate queues, one module for each capability."""

from tenure.server.operator import audit, bulk, editing, errors, lists, why

ROUTES = [*lists.ROUTES, *editing.ROUTES, *bulk.ROUTES, *why.ROUTES, *errors.ROUTES, *audit.ROUTES]
