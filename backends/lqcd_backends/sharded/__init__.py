"""One lattice over several workers, split along T, on top of any backend."""
