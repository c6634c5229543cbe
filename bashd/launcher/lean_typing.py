"""In a cell, the module ``typing``: what its processes use of it, without its imports.

The real one brings regular expressions and more: a fifth of a cell's start.
"""

# pyright: basic
# As dynamic as what it stands for.

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False


class _Form:
    """Stands in annotations, where nobody looks at it."""

    def __getitem__(self, _: object) -> _Form:
        return self


Any = Callable = Final = NoReturn = Optional = Tuple = _Form()


def TypeVar(name: str) -> str:  # noqa: N802 - as the original is called
    """Return something that can stand in an annotation."""
    return name


class _Maker(type):
    """Turns the annotations of a class into the fields of a named tuple."""

    def __new__(  # noqa: ANN204 - not an instance of this
        cls, name: str, bases: tuple[type, ...], body: dict[str, object]
    ):
        if not bases:
            return super().__new__(cls, name, bases, body)
        fields = list(body.pop("__annotations__", ()))  # type: ignore[call-overload]
        defaults = [body.pop(field) for field in fields if field in body]
        module = str(body["__module__"])
        base = namedtuple(name, fields, defaults=defaults, module=module)  # noqa: PYI024 - typing's is what this replaces
        return type(name, (base,), {"__slots__": (), **body})


class NamedTuple(metaclass=_Maker):
    """As the original; fields with a default come last."""
