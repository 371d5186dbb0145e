"""Report what a store holds, as one page that needs nothing else, and as tables."""
