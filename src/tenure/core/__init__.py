"""The decisions that all stores share, written once.

The functions here take a Transaction (`transaction.py`), which each engine implements, and decide
what each operation does to the jobs in it. Storing, counting, claiming and reading jobs is left to
the engine. The reference model (`tenure.engines.memory`) imports nothing from this package, because
the engines are compared with it.
"""
