"""Every engine beside the reference model, under a workload like production's.

    python -m tests.simulation.compare --engine sqlite --seconds 600 --seed 0

A history is a list of steps, made from a seed while it runs. Every answer is compared, and after a
step the jobs that it touched; every few steps, the whole state. A history that fails is shrunk and
written to a file, which `--replay` runs again.
"""
