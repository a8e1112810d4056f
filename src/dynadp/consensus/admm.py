"""The state of nodes, and what messages make of it (Algorithm 1; maths.md 2).

With w_pj = (V_p + V_j)/2 for each neighbour j and W_p = sum_j w_pj, node p's problem

    argmin_f Z_p(f) + 2 lam_p.f + eta sum_j || f - w_pj ||^2

is the one local shape with q = 2 eta N_p and b = 2 lam_p - 2 eta W_p, so (W_p, lam_p) is all that a
node carries from round to round, and all that :func:`receive` changes. Arrays have the axes node,
replica, coordinate; a deployed node is a stack of one.
"""

from dataclasses import dataclass

from dynadp._arrays import Array, Numbers, PerNode, Vectors, namespace, norm


@dataclass(frozen=True)
class State:
    """What a node knows before a round: functions of messages only, hence public (but for ``pull``
    in :func:`receive`).

    Attributes
    ----------
    W
        sum_j (V_p + V_j)/2, P x K x d.
    lam
        The dual variable lam_p, P x K x d; zero at first. Their sum over nodes stays zero.
    """

    W: Vectors
    lam: Vectors


def begin(own: Vectors, neighbours: Vectors, degrees: PerNode) -> State:
    """State before round 1, from data-independent V(0) and its sums over neighbours."""
    return State(0.5 * (degrees[:, None, None] * own + neighbours), namespace(own).zeros_like(own))


def penalty(degrees: PerNode, eta: Array) -> Numbers:
    """q = 2 eta N_p: how strongly the augmented term pulls."""
    return 2 * degrees[:, None] * eta


def linear_terms(state: State, eta: Array) -> tuple[Vectors, Numbers]:
    """b = 2 lam - 2 eta W, and the sum of the norms of its two parts for the certificate."""
    dual, pull = 2 * state.lam, 2 * eta[:, None] * state.W
    return dual - pull, norm(dual) + norm(pull)


def receive(
    state: State,
    own: Vectors,
    neighbours: Vectors,
    degrees: PerNode,
    eta: Array,
    *,
    relaxation: float = 1.0,
    pull: Vectors | None = None,
) -> State:
    """lam_p + (eta/2) sum_j (V_p - V_j), and W_p from the new messages.

    Parameters
    ----------
    state
        Before the round.
    own
        V_p as sent.
    neighbours
        sum_j V_j as received.
    degrees, eta
        N_p and the penalty.
    relaxation
        r in (0, 2): w_pj <- r (V_p + V_j)/2 + (1 - r) w_pj and the dual step times r (Boyd et al.
        2011, 3.4.3). 1 is the paper's algorithm; anything else is for Algorithm 1 in simulation.
    pull
        What stands for V_p in W_p instead of V_p itself: 2 g_p - V_p in the paper's Algorithm 3.
    """
    scaled = degrees[:, None, None] * own
    W = 0.5 * ((scaled if pull is None else degrees[:, None, None] * pull) + neighbours)
    lam = state.lam + (0.5 * relaxation * eta)[:, None] * (scaled - neighbours)
    if relaxation != 1.0:
        W = relaxation * W + (1 - relaxation) * state.W
    return State(W, lam)
