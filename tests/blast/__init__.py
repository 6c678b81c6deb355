"""The blast radius: whatever part fails, others keep what they were promised.

Run `python -m tests.blast --help`, or `make blast`.
"""
