"""Code shared by the engines on SQL databases."""
