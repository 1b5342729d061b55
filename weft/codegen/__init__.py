"""Kernels as data, and the code that they become: loop nests, LLVM IR. Nothing here knows of graphs."""
