"""The reference model: plain Python, written to be read.

Every other engine is compared against it, and it serves as a store for users' unit tests. It counts
by counting and searches linearly; its behaviour defines the contract.
"""

from tenure.engines.memory.engine import MemoryEngine
from tenure.engines.memory.memory_store import Record

__all__ = ["MemoryEngine", "Record"]
