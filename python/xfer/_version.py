"""The version of this package; that of the library is `xfer.version()`."""

__version__ = "0.1.0"
