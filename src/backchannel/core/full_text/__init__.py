"""Full-text search as values: words, queries, and the rank of what is found."""
