"""Embedders, one vendor or runtime a file; the heavy library is imported when one is made."""
