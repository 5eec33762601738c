"""Backends that come with lqcd_core. Each registers through the entry-point group ``lqcd``, as a stranger's would."""
