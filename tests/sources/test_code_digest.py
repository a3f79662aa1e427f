"""Digests of code: what changes them, what does not, and that they are of the code that is loaded."""

from __future__ import annotations

import functools
import importlib.util
import json
import linecache
import operator
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from penstock import AddField, ExtractField, MapField, MemoryShardedSource, SelectFields, Transform
from penstock.sources.code_digest import digest_code

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

names = iter(range(10**6))


@pytest.fixture
def load(tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    """Yield what makes a module of some source, in a file of its own; each has another name."""
    loaded = []

    def load(text: str, name: str | None = None) -> Any:
        name = name or f"user_code_{next(names)}"
        path = tmp_path / f"{name}.py"
        path.write_text(text)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        loaded.append(name)
        spec.loader.exec_module(module)  # type: ignore[union-attr]
        return module

    yield load
    for name in loaded:
        sys.modules.pop(name, None)


def digest(value: Any) -> str:
    made = digest_code("fn", value)
    assert made.digest, made.reason
    return made.digest


BASE = '''
import functools, math, re
import numpy as np
LIMIT = 3
NAMES = {"a", "b", "c", "d"}
WORD = re.compile("a+")
def helper(x):
    return x + LIMIT
class Base:
    step = 1
    def double(self, x): return 2 * x
class Doubles(Base):
    """Says what it does."""
    def __init__(self, more): self.more = more
    def __call__(self, x):
        return self.double(x) + self.more if WORD.match("a") else super().double(x)
    @property
    def size(self): return 7
    @staticmethod
    def still(x): return x
    @functools.lru_cache
    def kept(self): return 9
def twice(fn):
    @functools.wraps(fn)
    def call(x): return fn(fn(x))
    return call
def make(amount):
    def fn(x, scale=5):
        """Adds."""
        # by hand
        return [helper(x) * scale + amount, math.sqrt(x), np.square(x), "a" in NAMES]
    return fn
def outer(x, *, most=8):
    def inner(y): return y - 6
    return inner(x) if x in {1, 2, 4} else most
@twice
def decorated(x): return x * 11
fn, adds = make(4), make
CASES = {
    "closure": make(4), "nested": outer, "decorated": decorated, "object": Doubles(10), "method": Doubles(10).double,
    "class": Doubles, "partial": functools.partial(helper, 12), "lambda": (lambda x: x * 13), "lambdas": [
    (lambda x: x + 14), (lambda x: x + 15)][1], "numpy": np.sqrt, "c": math.sqrt, "builtin": str.upper,
    "lambda of one line": (lambda f, g: g)(lambda x: x - 16, lambda x: x - 17),
}
'''


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("LIMIT = 3", "LIMIT = 30", {"closure", "partial"}),  # a value that a function refers to refers to
        ('"d"}', '"e"}', {"closure"}),
        ('"a+"', '"b+"', {"object", "method", "class"}),
        ("return x + LIMIT", "return x - LIMIT", {"closure", "partial"}),
        ("step = 1", "step = 2", {"object", "method", "class"}),
        ("return 2 * x", "return 3 * x", {"object", "method", "class"}),
        ("return 7", "return 70", {"object", "method", "class"}),
        ("still(x): return x", "still(x): return -x", {"object", "method", "class"}),
        ("return 9", "return 90", {"object", "method", "class"}),
        ("fn(fn(x))", "fn(x)", {"decorated"}),
        ("scale=5", "scale=50", {"closure"}),
        ('make(4), "nested"', 'make(40), "nested"', {"closure"}),
        ("y - 6", "y - 60", {"nested"}),
        ("most=8", "most=80", {"nested"}),
        ("{1, 2, 4}", "{1, 2, 5}", {"nested"}),
        ("x * 11", "x * 110", {"decorated"}),
        ("Doubles(10),", "Doubles(11),", {"object"}),
        ("helper, 12", "helper, 120", {"partial"}),
        ("x * 13", "x * 130", {"lambda"}),
        ("x + 15", "x + 150", {"lambdas"}),
        ("x - 17", "x - 170", {"lambda of one line"}),
        # What does nothing.
        ('"""Adds."""', '"""Adds up."""', set()),
        ("# by hand", "# by heart", set()),
        ("def helper(x):\n", "\n\ndef helper(\n  x,\n):\n", set()),
        ('"""Says what it does."""', "...", set()),
        ("np.sqrt,", "np.sqrt ,", set()),
    ],
)
def test_what_a_function_does_decides(load: Any, before: str, after: str, changed: set[str]) -> None:
    assert before in BASE
    one, other = load(BASE).CASES, load(BASE.replace(before, after)).CASES
    found = {name for name in one if digest(one[name]) != digest(other[name])}
    assert found == changed
    assert len({digest(value) for value in one.values()}) == len(one)


def test_modules_of_the_user_are_followed(load: Any) -> None:
    text = "MORE = 1\ndef clean(x): return x + MORE\ndef unused(x): return 1\n"
    seen = []
    for helpers in (text, text.replace("MORE = 1", "MORE = 2"), text.replace("return 1", "return 2")):
        load(helpers, "user_helpers")
        seen.append(digest(load("import user_helpers\ndef fn(x): return user_helpers.clean(x)\n").fn))
    assert seen[0] == seen[2] != seen[1]


def test_functions_of_libraries_count_by_name_and_by_what_they_hold(load: Any, tmp_path: Path) -> None:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    text = "import functools\ndef plain(x): return x\ndef make(n):\n    def inner(x): return x + n\n    return inner\n"
    wraps = "def wrap(fn):\n    @functools.wraps(fn)\n    def call(x): return fn(x)\n    return call\n"
    one = load(text + wraps, "site-packages/some_library")
    before = digest(one.plain)
    assert digest(one.make(3)) == digest(one.make(3)) != digest(one.make(5))
    assert digest(one.wrap(BASE.upper)) == digest(one.wrap(BASE.upper)) != digest(one.wrap(BASE.lower))
    other = load((text + wraps).replace("return x\n", "return -x\n"), "site-packages/some_library")
    assert digest(other.plain) == before


PROCESS = """
import sys, json
sys.path.insert(0, sys.argv[1])
import user_module
from penstock.sources.code_digest import digest_code
print(json.dumps({name: digest_code("", value).digest for name, value in user_module.CASES.items()}))
"""


def test_digests_are_the_same_in_all_processes(load: Any, tmp_path: Path) -> None:
    ours = {name: digest(value) for name, value in load(BASE, "user_module").CASES.items()}
    for seed in "1", "2":
        command = [sys.executable, "-c", PROCESS, str(tmp_path)]
        env = {**os.environ, "PYTHONHASHSEED": seed}
        out = subprocess.run(command, capture_output=True, text=True, check=True, env=env).stdout
        assert json.loads(out) == ours


def test_a_script_and_a_module_have_the_same_digests(load: Any, tmp_path: Path) -> None:
    ours = digest(load(BASE, "user_script").fn)
    (tmp_path / "script.py").write_text(
        BASE + PROCESS.partition("user_module")[2].partition("print")[0] + "print(digest_code('', fn).digest)"
    )
    out = subprocess.run([sys.executable, str(tmp_path / "script.py"), "."], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == ours


def test_a_file_that_was_edited_gives_no_digest_of_code_that_is_not_loaded(load: Any, tmp_path: Path) -> None:
    text = "def fn(x): return x + 1\ndef other(x): return x\n"
    module = load(text, "user_edited")
    before, path = digest(module.fn), tmp_path / "user_edited.py"
    new = text.replace("x + 1", "x + 2000")
    path.write_text(new)
    now = digest(load(new).fn)
    assert digest(module.fn) not in (before, now)  # its bytecode
    assert digest(module.other) == digest(load(text).other)
    path.write_text("# moved\n\n" + text)
    assert digest(module.fn) == before
    path.write_text("def fn(:")
    assert digest(module.fn) != before
    path.unlink()
    assert digest(module.fn) != before


def test_cells_of_notebooks_have_source() -> None:
    text = "def fn(x): return x * 2\n"
    linecache.cache["<ipython-input-1>"] = (len(text), None, [text], "<ipython-input-1>")
    cell: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(text, "<ipython-input-1>", "exec", dont_inherit=True), cell)
    spaced: dict[str, Any] = {"__name__": "__main__"}
    more = "\n\n# more\n" + text
    linecache.cache["<ipython-input-2>"] = (len(more), None, more.splitlines(keepends=True), "<ipython-input-2>")
    exec(compile(more, "<ipython-input-2>", "exec", dont_inherit=True), spaced)
    without: dict[str, Any] = {"__name__": "__main__"}
    exec(text, without)
    assert digest(cell["fn"]) == digest(spaced["fn"]) != digest(without["fn"])


LOCK = threading.Lock()
seen_rows: list[int] = []


def with_lock(sample: dict[str, Any]) -> dict[str, Any]:
    with LOCK:
        return sample


def test_what_has_no_digest_says_why() -> None:
    made = digest_code("with_lock", with_lock)
    assert not made.digest
    assert re.search(r"'with_lock' has no digest, because of 'LOCK': cannot pickle '_thread.lock' object", made.reason)
    deep: list[Any] = []
    deep.append(deep)
    assert not digest_code("deep", deep).digest
    assert not digest_code("file", sys.stdout).digest
    assert not digest_code("in a set", frozenset([with_lock])).digest


def counted(sample: dict[str, Any]) -> dict[str, Any]:
    global kept
    kept = sample
    return {**kept, "calls": 1}


kept: Any = None


def test_what_a_function_keeps_in_itself_does_not_count() -> None:
    before = digest(counted)
    counted({"x": threading.Lock()})
    assert digest(counted) == before


def test_large_values_count_in_full() -> None:
    one, other = np.zeros(10_000), np.zeros(10_000)
    other[5000] = 1
    for make in (lambda value: AddField("a", value), lambda value: ExtractField("a", "b", value)):
        assert make(one).fingerprint() == make(one.copy()).fingerprint() != make(other).fingerprint()
    assert MapField("a", operator.itemgetter(1)).fingerprint() != MapField("a", operator.itemgetter(2)).fingerprint()
    assert (
        MapField("a", functools.partial(pow, 2)).fingerprint() != MapField("a", functools.partial(pow, 3)).fingerprint()
    )
    assert MapField("a", len).fingerprint() != MapField("b", len).fingerprint()


class Adds(Transform):
    def __init__(self, amount: Any) -> None:
        self.amount = amount

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        return {**sample, "more": self.amount}


class Untold(Adds):
    def settings(self) -> None:
        """There is more to it than settings."""


class Chosen(SelectFields):
    """A class that is derived from ours is another one."""


def test_transforms_of_the_user() -> None:
    assert Adds(1).fingerprint() == Adds(1).fingerprint() != Adds(2).fingerprint()
    assert Adds(1).order_fingerprint() == Adds(2).order_fingerprint()
    assert Untold(1).fingerprint() is None
    assert Adds(LOCK).fingerprint() is None
    assert Chosen(["a"]).fingerprint() != SelectFields(["a"]).fingerprint()
    assert [each.name for each in Chosen(["a"]).code_digests()] == ["Chosen"]


def test_keys_of_our_own_transforms_are_those_of_the_first_release() -> None:
    """A class that moves, or is tidied, keeps them: those were recorded when keys were made of places of classes."""
    recorded = json.loads((Path(__file__).parents[1] / "golden" / "states" / "states.json").read_text())
    source = MemoryShardedSource([{"x": 1}], num_shards=3, fingerprint="rows").rename_fields({"text": "words"})
    assert source.fingerprint == recorded["keyed/renamed"]["state"]["source"]
    assert SelectFields.written_name == "fields.SelectFields/1"

    class Moved(SelectFields, written_name="fields.SelectFields/1"):
        pass

    class Mended(SelectFields, written_name="fields.SelectFields/2"):
        pass

    prints = [kind(["x"]).fingerprint() for kind in (SelectFields, Moved, Mended)]
    assert prints[0] == prints[1] != prints[2]
