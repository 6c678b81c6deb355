"""Jobs, operations and their rules: pure data, without I/O."""
