"""The CPU: schedules of fused groups, kernels of operations that have their own, and the code of both."""
