"""The engine that is one queue over several stores.

Everything of a tenant is on one shard, which a hash of its name chooses. What a single store
decides in one transaction is decided there; what would need several shards is refused.
"""
