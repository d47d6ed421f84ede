"""The processes that the rows start: gateways, bare servers, and clients under load."""
