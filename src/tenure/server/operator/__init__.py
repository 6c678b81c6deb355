"""Routes for operators, one module for each capability."""
