"""Values that several gateways on one database tell each other."""
