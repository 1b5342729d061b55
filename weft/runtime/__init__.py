"""The runtime: memory, threads, programs, libraries, devices and CPython's objects; nothing here knows of graphs."""
