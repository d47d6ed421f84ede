"""Several gateways: what they say of themselves and tell each other."""
