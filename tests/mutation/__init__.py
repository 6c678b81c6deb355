"""Mutation tests: change one decision at a time, and check that a test notices.

Run `python -m tests.mutation --help`, or `make mutate`.
"""
