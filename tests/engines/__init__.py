"""What is special to one engine."""
