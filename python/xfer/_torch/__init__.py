"""What xfer.torch and the integrations know of torch's tensors, modules and meshes."""
