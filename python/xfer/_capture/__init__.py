"""The recorder under xfer.capture."""
