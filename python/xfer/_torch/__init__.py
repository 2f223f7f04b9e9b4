"""The parts of xfer.torch."""
