"""KERNELS: what torch's operators launch on a device: FLOPs and bytes, kernel by kernel."""
