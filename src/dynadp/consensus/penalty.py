"""How strongly the augmented term pulls."""

from dynadp._arrays import Array, Numbers, PerNode


def penalty(degrees: PerNode, eta: Array) -> Numbers:
    """q = 2 eta N_p."""
    return 2 * degrees[:, None] * eta
