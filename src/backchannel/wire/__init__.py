"""The native protocol: rows and answers as clients see them."""
