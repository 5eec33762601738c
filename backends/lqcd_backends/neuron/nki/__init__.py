"""The backend ``neuron-nki``: fused kernels, compiled once into a keyed cache, run through libnrt or native torch tensors."""
