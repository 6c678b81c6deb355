"""The PostgreSQL engine."""
