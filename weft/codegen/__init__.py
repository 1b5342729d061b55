"""Kernels as data, what stands in their loops, and elementary functions. Nothing here knows of graphs."""
