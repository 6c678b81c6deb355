"""Routes for people who operate queues, one module for each capability."""

from tenure.server.operator import audit, errors, why, workers

ROUTES = [*why.ROUTES, *errors.ROUTES, *audit.ROUTES, *workers.ROUTES]
