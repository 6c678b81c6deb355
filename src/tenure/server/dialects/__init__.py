"""Dialects: the wires of other queues, each a thin translation to operations."""

NAMES = ("firecrawl", "d1", "queuey", "evekill")
