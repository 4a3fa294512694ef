"""The attention kernels and the engine on a Mac's GPU, as one report."""
