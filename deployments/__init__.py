"""Thin Ray Serve shims, one file a stage; what a stage does is in ``deployments.engines``."""
