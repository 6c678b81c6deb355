"""Routes for people who operate queues, one module for each capability."""

from tenure.server.operator import audit, errors, rates, why, workers

ROUTES = [*why.ROUTES, *workers.ROUTES, *errors.ROUTES, *audit.ROUTES, *rates.ROUTES]
