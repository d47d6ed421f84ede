"""The versions of the package and of the protocol that its gateway and clients speak, in one place."""

__version__ = "0.2.0"

PROTOCOL_VERSION = 4
