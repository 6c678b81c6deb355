"""What the engines on SQL databases share."""
