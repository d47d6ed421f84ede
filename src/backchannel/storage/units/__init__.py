"""Units: the transactions that write, one module a theme."""
