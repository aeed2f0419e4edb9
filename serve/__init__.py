"""What the outside sees, and what the ingress does."""
