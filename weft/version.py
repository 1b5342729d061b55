"""Weft's version, in one place: the packaging, the command line and the object cache read it here."""

__version__ = "0.1.0"
