"""Dialects: the HTTP APIs of other queues, each translated to the operations of Tenure."""

NAMES = ("firecrawl", "d1", "queuey", "evekill")
