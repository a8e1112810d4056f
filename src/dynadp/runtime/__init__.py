"""Where rounds happen: all nodes in one process (:mod:`~dynadp.runtime.simulation`), later on networks."""
