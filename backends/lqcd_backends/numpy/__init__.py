"""The reference backend."""
