"""Digests: the names of kernels and of what the cache keeps."""

from __future__ import annotations

import functools

try:
    from _blake2 import blake2b  # hashlib would load OpenSSL first, which takes as long as ten modules of ours
except ImportError:
    from hashlib import blake2b

digest = functools.partial(blake2b, digest_size=32)
"""Of bytes; has the methods of hashlib's objects."""
