"""Compares every engine with the reference model, under a workload like that of production.

    python -m tests.simulation.compare --engine sqlite --seconds 600 --seed 0

A history is a list of steps, generated from a seed while it runs. Every result is compared, and
after each step the jobs that it touched; every few steps, the whole state. A history that fails is
shrunk and saved to a file, which `--replay` runs again.
"""
