"""What several suites need."""
