"""`dataclass` as in the standard library, for classes that are made whenever a process starts.

The standard library writes and compiles up to six methods for each class, which takes a quarter of a millisecond; a
fetcher has sixty such classes, and somebody waits for its start. Here it only finds the fields. Methods that compare,
show and freeze are the same functions for all classes, and `__init__` is written when it is first called.

`fields`, `replace`, pickling and inheritance work as usual. A class with `InitVar` or `order=True` needs the original,
and so does one that is derived from such a class, or a user's own frozen one from one of these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
else:
    import dataclasses
    from dataclasses import MISSING, FrozenInstanceError, field, fields
    from operator import attrgetter
    from reprlib import recursive_repr

    __all__ = ["dataclass", "field"]

    def dataclass(cls=None, /, *, frozen=False, slots=False, kw_only=False, eq=True, repr=True):  # noqa: A002
        """Add the methods of a dataclass to a class; use it as the decorator of the same name."""

        def decorate(plain):
            if plain.__doc__ is None:
                plain.__doc__ = plain.__name__  # or the signature of `__init__` would be looked up, to stand there
            own = vars(plain)
            is_hash_own = own.get("__hash__") is not None or ("__hash__" in own and "__eq__" not in own)
            made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots, kw_only=kw_only)(plain)
            methods = {"__init__": _unwritten_init(made, frozen)}
            if repr:
                methods["__repr__"] = _shown(made)
            if eq:
                methods.update(_compared(made, frozen))
            if is_hash_own:
                methods.pop("__hash__", None)
            for name, method in methods.items():
                if name == "__hash__" or name not in own:
                    setattr(made, name, method)
            if frozen:
                made.__setattr__, made.__delattr__ = _frozen(made)
                if slots and "__getstate__" not in own:
                    made.__getstate__, made.__setstate__ = _get_state, _set_state
            return made

        return decorate if cls is None else decorate(cls)

    def _unwritten_init(cls, frozen):
        """Give an `__init__` that replaces itself."""

        def __init__(self, *values, **named):  # noqa: N807
            if vars(cls)["__init__"] is __init__:  # another thread may have been quicker
                cls.__init__ = _write_init(cls, frozen)
            vars(cls)["__init__"](self, *values, **named)

        __init__.__qualname__ = f"{cls.__qualname__}.__init__"
        return __init__

    def _write_init(cls, frozen):
        known = {"_set": object.__setattr__, "_MISSING": MISSING}
        placed, named, lines = ["self"], [], []
        for each in fields(cls):
            name, value = each.name, each.name
            if each.default_factory is not MISSING:
                known[f"_make_{name}"] = each.default_factory
                value = f"_make_{name}() if {name} is _MISSING else {name}" if each.init else f"_make_{name}()"
                default = "=_MISSING"
            elif each.default is not MISSING:
                known[f"_default_{name}"] = each.default
                default = f"=_default_{name}"
                value = name if each.init else f"_default_{name}"
            else:
                default = ""
            if each.init:
                (named if each.kw_only else placed).append(name + default)
            elif not default:
                continue
            lines.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
        if hasattr(cls, "__post_init__"):
            lines.append("self.__post_init__()")
        parameters = ", ".join([*placed, "*", *named] if named else placed)
        body = "".join(f"\n    {line}" for line in lines or ["pass"])
        exec(f"def __init__({parameters}):{body}", known)  # noqa: S102  the names of fields, nothing from outside
        known["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
        return known["__init__"]

    def _shown(cls):
        names = [each.name for each in fields(cls) if each.repr]

        @recursive_repr()
        def __repr__(self):  # noqa: N807
            return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

        return __repr__

    def _compared(cls, frozen):
        """Give `__eq__` and `__hash__`; what can change has no hash."""
        compared = [each.name for each in fields(cls) if each.compare]
        hashed = [each.name for each in fields(cls) if (each.compare if each.hash is None else each.hash)]
        values, key = _values(compared), _values(hashed)

        def __eq__(self, other):  # noqa: N807
            return values(self) == values(other) if type(other) is type(self) else NotImplemented

        def __hash__(self):  # noqa: N807
            return hash(key(self))

        return {"__eq__": __eq__, "__hash__": __hash__ if frozen else None}

    def _values(names):
        return attrgetter(*names) if names else lambda _: ()

    def _frozen(cls):
        names = frozenset(each.name for each in fields(cls))

        def __setattr__(self, name, value):  # noqa: N807
            if type(self) is cls or name in names:
                raise FrozenInstanceError(f"cannot assign to field {name!r}")
            super(cls, self).__setattr__(name, value)

        def __delattr__(self, name):  # noqa: N807
            if type(self) is cls or name in names:
                raise FrozenInstanceError(f"cannot delete field {name!r}")
            super(cls, self).__delattr__(name)

        return __setattr__, __delattr__

    def _get_state(self):
        return [getattr(self, each.name) for each in fields(self)]

    def _set_state(self, state):
        for each, value in zip(fields(self), state, strict=True):
            object.__setattr__(self, each.name, value)
