"""NVIDIA's GPUs, through LLVM's PTX back end and the CUDA driver."""
