"""Turn text into the lexical leg's tokens, the same way for cards and for queries."""
