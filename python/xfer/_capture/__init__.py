"""What a loader does to its tensors, recorded: the parts of xfer.capture."""
