"""The embedded engine: one SQLite file, one writing thread, readers beside it."""
