"""What claims jobs and runs their handlers."""
