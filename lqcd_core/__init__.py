"""Lattice QCD in Python: one script, any backend."""
from .backend import BackendInfo, Option
from .hookspecs import hookimpl
