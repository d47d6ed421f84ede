"""The command line: a client of the gateway like any other."""
