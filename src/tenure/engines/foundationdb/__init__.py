"""Jobs in a FoundationDB cluster."""
