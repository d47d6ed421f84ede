"""Models: rows of them, their health, and waits for them."""
