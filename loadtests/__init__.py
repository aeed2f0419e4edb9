"""Make and measure a knowledge base, and a load, far larger than the shipped ones."""
