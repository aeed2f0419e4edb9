"""Vector stores, one vendor a file."""
