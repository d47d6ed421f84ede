"""The versions of the package and of its wire protocol."""

__version__ = "0.2.0"

PROTOCOL_VERSION = 4
