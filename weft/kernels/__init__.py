"""Kernels that users write: their sources are read into one tree, whatever language they are in, and given types.

`python_source` reads Python functions and `c_source` a subset of Metal's C++ and of CUDA, both into the statements of
`syntax`. `typing` checks these for the dtypes of a call and gives the typed tree (`tree`), which targets compile and
`interpreter` runs, thread by thread, for the tests.
"""
