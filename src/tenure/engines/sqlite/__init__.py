"""The embedded engine: one SQLite file, one writer thread, concurrent readers."""
