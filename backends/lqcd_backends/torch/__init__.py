"""The torch backend: fast on a CPU, differentiable, and on CUDA where there is one."""
