"""LLVM, and nothing of Weft's own: a builder of typed values that writes IR, the engine that makes machine code of it,
and the memory and the cache for that. What knows of CPython, of programs or of kernels stands above."""
