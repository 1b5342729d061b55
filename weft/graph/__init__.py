"""Programs as data: nodes, symbolic sizes, traces, the verifier and the text form."""
