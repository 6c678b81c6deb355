"""Observability: metrics, traces and logs."""
