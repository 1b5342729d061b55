"""Files of arrays: npy and npz, safetensors, GGUF. Bytes and layouts only; `weft/core/saving.py` has what users call.

A file is data from a stranger: every length is checked against the bytes that are there before memory is taken for it,
nothing in it is run, and what does not hold together is a `FileError` that says where.
"""
