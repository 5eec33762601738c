"""The smallest complete backend for lqcd-core."""
