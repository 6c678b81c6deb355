"""Every decision that the stores share, written once.

The functions here take a Transaction (`transaction.py`), which each engine implements, and decide
what the operations do to the jobs in it. Engines keep how jobs are stored, counted, claimed and
read. The reference model (`tenure.engines.memory`) imports nothing of this package: it is what the
engines are compared with.
"""
