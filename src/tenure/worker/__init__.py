"""Workers: they claim jobs and run their handlers."""
