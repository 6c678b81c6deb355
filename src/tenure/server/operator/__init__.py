"""Routes for people who operate queues, one module for each capability."""

from tenure.server.operator import audit, editing, errors, lists, why

ROUTES = [*lists.ROUTES, *editing.ROUTES, *why.ROUTES, *errors.ROUTES, *audit.ROUTES]
