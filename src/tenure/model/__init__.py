"""What a job is and may do: data and rules, without I/O."""
