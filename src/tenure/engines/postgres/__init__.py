"""The PostgreSQL engine: jobs in a schema of a database shared by several machines."""
