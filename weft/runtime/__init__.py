"""The runtime: memory, machine code and its cache, threads, libraries and devices; nothing here knows of graphs."""
