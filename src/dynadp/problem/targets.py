"""Rows and losses that belong together: signs and margins, numbers and residuals."""

from collections.abc import Sequence

from dynadp._arrays import Array
from dynadp.data import Kind, Shard, StreamedShard, require_signs
from dynadp.errors import DeclarationError
from dynadp.problem.losses import Loss
from dynadp.problem.residual_losses import Huber, PseudoHuber


def default_loss(kind: Kind, algorithm: str) -> Loss | None:
    """The loss for rows with a number to predict: clipped squares in sums, a smooth loss in ADMM.
    None for labels, whose default is that of a plan.
    """
    if kind != "numbers":
        return None
    return Huber() if algorithm == "sum" else PseudoHuber()


def targets_of(
    shards: Sequence[Shard | StreamedShard], loss: Loss, what: str
) -> list[Array] | None:
    """Return t of each node's rows in memory, for a loss of residuals; None for one of margins.

    Raises
    ------
    DeclarationError
        Where the rows have another kind of answer than the loss is for.
    """
    if not loss.residual:
        for shard in shards:
            if shard.kind == "numbers":
                raise DeclarationError(
                    f"node {shard.name!r}: its rows have a number to predict, and loss "
                    f"{loss.name!r} separates two classes; take 'huber', 'pseudo_huber' or "
                    "'logistic_cosh'"
                )
        require_signs(shards, what)
        return None
    for shard in shards:
        if shard.kind != "numbers":
            raise DeclarationError(
                f"node {shard.name!r}: its rows have classes, and loss {loss.name!r} is for a "
                "number to predict; declare a target with low and high, or take a loss of margins "
                "such as 'logistic'"
            )
    return [shard.y for shard in shards if isinstance(shard, Shard)]
