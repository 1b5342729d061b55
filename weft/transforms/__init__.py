"""Functions over graphs: derivatives forwards and backwards, batching, compilation. One driver each; the rules are the
primitives'."""
