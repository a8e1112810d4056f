"""Classes that are found by their ``name``: in run files, in estimators and in records."""

import inspect
from abc import ABC
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from typing import Any, ClassVar, Self

from dynadp.errors import DeclarationError

_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Named(ABC):
    """Base of a family of classes; each subclass that sets ``name`` enters the family's registry.

    Constructor parameters are kept as attributes of the same names, as in a dataclass.

    Attributes
    ----------
    name
        How files call the class. A class without a ``name`` of its own is not registered.
    ignored
        Keys that files of 0.1.0 give beside the name although the class has no such parameter.
    registry
        The classes of the family, by name.
    """

    name: ClassVar[str] = "own"
    ignored: ClassVar[tuple[str, ...]] = ()
    registry: ClassVar[dict[str, type[Any]]]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            return
        known = cls.registry.get(cls.name, cls)
        if _path(known) != _path(cls):  # equal where a module or a cell is run again
            raise DeclarationError(
                f"two classes have the name {cls.name!r}, {_path(known)} and {_path(cls)}; "
                "give one of them another name"
            )
        cls.registry[cls.name] = cls

    @classmethod
    def named(cls, name: str) -> type[Self]:
        """The registered class of that name."""
        if name not in cls.registry:
            raise DeclarationError(
                f"{cls.__name__.lower()} is {name!r}; expected a {cls.__name__} or one of "
                f"{', '.join(cls.registry)}; a class of your own is known once its module is "
                "imported"
            )
        return cls.registry[name]

    @classmethod
    def parameters(cls) -> Mapping[str, inspect.Parameter]:
        """The constructor's parameters by name, with their types and defaults."""
        declared = inspect.signature(cls, eval_str=True).parameters
        return {name: one for name, one in declared.items() if one.kind not in _COLLECTING}

    @classmethod
    def from_description(cls, description: Mapping[str, Any]) -> Self:
        """The object that :meth:`describe` described; derived constants are computed anew."""
        kind = cls.named(description["name"])
        return kind(
            **{name: description[name] for name in kind.parameters() if name in description}
        )

    def describe(self) -> dict[str, Any]:
        """Name and parameters, for the run record."""
        return {"name": self.name, **asdict(self)} if is_dataclass(self) else self.declaration()

    def declaration(self) -> dict[str, Any]:
        """Name and constructor parameters, as in a run file."""
        kept = {name: getattr(self, name) for name in self.parameters() if hasattr(self, name)}
        return {"name": self.name, **kept}


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
