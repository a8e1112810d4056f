"""Rows and losses that belong together: signs and margins, classes and scores, numbers and
residuals.
"""

from collections.abc import Sequence

from dynadp._arrays import Array
from dynadp.data import Kind, Shard, StreamedShard, require_signs
from dynadp.errors import DeclarationError
from dynadp.problem.losses import Loss
from dynadp.problem.residual_losses import Huber, PseudoHuber

_ADVICE = {
    "signs": "take a loss of margins, such as 'logistic'",
    "classes": "take loss 'softmax'",
    "numbers": "take 'huber', 'pseudo_huber' or 'logistic_cosh'",
}


def default_loss(kind: Kind, algorithm: str) -> Loss | None:
    """The loss for rows with a number to predict: clipped squares in sums, a smooth loss in ADMM.
    None for labels, whose default is that of a plan.
    """
    if kind != "numbers":
        return None
    return Huber() if algorithm == "sum" else PseudoHuber()


def require_kind(shards: Sequence[Shard | StreamedShard], loss: Loss) -> None:
    """Refuse rows whose answers the loss is not about."""
    what = f"loss {loss.describe()['name']!r}"
    for shard in shards:
        if shard.kind != loss.kind:
            if loss.kind == "signs" and shard.kind == "classes":
                require_signs([shard], what)
            if loss.kind == "signs":
                raise DeclarationError(
                    f"node {shard.name!r}: its rows have a number to predict, and {what} separates "
                    f"two classes; {_ADVICE[shard.kind]}"
                )
            raise DeclarationError(
                f"node {shard.name!r}: {what} is about {loss.kind}, and its rows have "
                f"{shard.kind}; {_ADVICE[shard.kind]}, or declare the label otherwise"
            )


def answers_of(shards: Sequence[Shard | StreamedShard], loss: Loss) -> list[Array] | None:
    """Return y of each node's rows in memory; None where rows are multiplied by it. Refuse rows
    whose answers the loss is not about.
    """
    require_kind(shards, loss)
    if loss.kind == "signs":
        return None
    return [shard.y for shard in shards if isinstance(shard, Shard)]
