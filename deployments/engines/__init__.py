"""What each stage does: plain Python, no Ray."""
