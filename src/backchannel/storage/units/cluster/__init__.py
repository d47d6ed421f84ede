"""Units of several gateways on one database."""
