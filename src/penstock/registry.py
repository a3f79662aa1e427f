"""Names that stand for code: `"mds"` → its format, `"s3"` → its store, open to outside packages."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from penstock.errors import ConfigError, PenstockError, meant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

T = TypeVar("T")
U = TypeVar("U")


class Registry(Generic[T]):
    """The known names of one kind of plug-in, such as column encodings, and the code that each stands for.

    Call `names()` to list them, decorate a class with `register(name)` to add one to this process, or declare an entry
    point of the given group in your package to add one to all processes. A name that penstock itself uses cannot be
    taken. Code is loaded on first use.
    """

    def __init__(self, kind: str, *, group: str, builtin: Mapping[str, str | T]) -> None:
        self._kind = kind
        self._group = group
        self._paths = {name: path for name, path in builtin.items() if isinstance(path, str)}
        self._loaded: dict[str, T] = {name: item for name, item in builtin.items() if not isinstance(item, str)}
        self._has_scanned = False

    def register(self, name: str) -> Callable[[U], U]:
        """Decorate the class or function that `name` stands for in this process.

        Other processes know it only if they import the same module; with an entry point they need not.
        """

        def add(target: U) -> U:
            own_path = f"{getattr(target, '__module__', '')}:{getattr(target, '__qualname__', '')}"
            # An entry point may lead to a decorated class: it is the same one.
            if name in self._loaded or self._paths.get(name, own_path) != own_path:
                raise ConfigError(f"{self._kind} {name!r} is already registered")
            self._loaded[name] = cast("T", target)
            return target

        return add

    def replace(self, name: str, item: T | None) -> T | None:
        """Let a name, also one of our own, stand for something else in this process, or for nothing; gives the old."""
        old = self.get(name) if name in self else None
        if item is None:
            self._loaded.pop(name, None)
        else:
            self._loaded[name] = item
        return old

    def names(self, *, of_packages: bool = True) -> list[str]:
        """List every name that `get` knows, sorted; without those of packages that were not looked for yet."""
        if of_packages:
            self._scan()
        return sorted({*self._paths, *self._loaded})

    def get(self, name: str) -> T:
        """Load what `name` stands for; an unknown name is an error that lists the known ones."""
        if name not in self._loaded:
            if name not in self._paths:
                self._scan()
            if name not in self._paths:
                raise self._unknown(name)
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    @contextmanager
    def loading(self, name: str) -> Iterator[None]:
        """Load what `name` stands for while the block waits for something else."""
        if name in self._loaded:
            yield
            return
        thread = threading.Thread(target=self._try_to_load, args=(name,), name="penstock-load")
        thread.start()
        try:
            yield
        finally:
            thread.join()

    def _try_to_load(self, name: str) -> None:
        with suppress(PenstockError):  # who needs it meets the same error
            self.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self._loaded or name in self._paths or name in self.names()

    def _load(self, name: str) -> T:
        module, _, attributes = self._paths[name].partition(":")
        try:
            return cast("T", attrgetter(attributes)(import_module(module)))
        except PenstockError:
            raise
        except Exception as error:
            raise ConfigError(f"cannot load {self._kind} {name!r} from {self._paths[name]}: {error!r}") from error

    def _scan(self) -> None:
        if not self._has_scanned:
            self._has_scanned = True
            for point in _entry_points().select(group=self._group):
                if point.name not in self._loaded:
                    self._paths.setdefault(point.name, point.value)

    def _unknown(self, name: str) -> ConfigError:
        names = self.names()
        return ConfigError(f"unknown {self._kind} {name!r}{meant(name, names)}: use one of {', '.join(names)}")


@cache
def _entry_points() -> Any:
    """Return those of all packages, once for all registries: it takes a tenth of what starting a process does."""
    from importlib.metadata import entry_points

    return entry_points()
