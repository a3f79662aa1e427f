"""Names that stand for code: `"mds"` → its format, `"s3"` → its store, open to outside packages."""

from __future__ import annotations

from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Generic, TypeVar, cast

from penstock.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Registry(Generic[T]):
    """Maps a name to an object, or to the dotted path `"package.module:attribute"` of one, loaded on first use.

    Outside packages add to it through entry points of the given group; a name of our own cannot be taken over.
    """

    def __init__(self, kind: str, *, group: str, builtin: dict[str, str]) -> None:
        self._kind = kind
        self._group = group
        self._paths = dict(builtin)
        self._loaded: dict[str, T] = {}
        self._has_scanned = False

    def register(self, name: str) -> Callable[[T], T]:
        """Decorate the class or function that `name` shall stand for."""

        def add(target: T) -> T:
            if name in self._loaded or name in self._paths:
                raise ConfigError(f"{self._kind} {name!r} is already registered")
            self._loaded[name] = target
            return target

        return add

    def names(self) -> list[str]:
        """List every name that `get` knows, sorted."""
        self._scan()
        return sorted({*self._paths, *self._loaded})

    def get(self, name: str) -> T:
        """Load what `name` stands for; an unknown name is an error that lists the known ones."""
        if name not in self._loaded:
            if name not in self._paths:
                self._scan()
            if name not in self._paths:
                raise self._unknown(name)
            module, _, attributes = self._paths[name].partition(":")
            self._loaded[name] = cast("T", attrgetter(attributes)(import_module(module)))
        return self._loaded[name]

    def __contains__(self, name: str) -> bool:
        return name in self._loaded or name in self._paths or name in self.names()

    def _scan(self) -> None:
        if not self._has_scanned:
            from importlib.metadata import entry_points  # takes a tenth of what starting a process takes

            self._has_scanned = True
            for point in entry_points(group=self._group):
                self._paths.setdefault(point.name, point.value)

    def _unknown(self, name: str) -> ConfigError:
        names = self.names()
        import difflib  # which takes a while to load, and is seldom needed

        close = difflib.get_close_matches(name, names, n=1)
        hint = f" (did you mean {close[0]!r}?)" if close else ""
        return ConfigError(f"unknown {self._kind} {name!r}{hint}: known are {', '.join(names)}")
