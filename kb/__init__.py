"""What is known: cards, sub-chunks, models, stores and generations. No Ray, no web."""
