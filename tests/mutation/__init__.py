"""Mutation tests: change one decision at a time, and see whether a test notices.

Run `python -m tests.mutation --help`, or `make mutate`.
"""
