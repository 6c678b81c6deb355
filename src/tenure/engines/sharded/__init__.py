"""The engine that is one queue over several stores.

Everything of a tenant is on one shard, which a hash of its name chooses, so one transaction there
decides. An operation that would need a transaction over several shards is rejected.
"""
