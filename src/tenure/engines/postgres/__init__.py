"""The PostgreSQL engine: jobs in a schema of a database that several machines share."""
