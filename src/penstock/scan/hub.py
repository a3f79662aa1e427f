"""Which files of a dataset repository of the Hugging Face Hub are a split of a subset, by the Hub's own rules.

What the repository says of itself comes first: `configs` in the head of README.md, or in `.huggingface.yaml`. Without
that, names tell: `data/train-00000-of-00002.parquet`, then folders, then files that are called after a split; if none
is, everything is `train`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from penstock.errors import ConfigError, NoReadableFilesError
from penstock.extras import require
from penstock.outside_text import DOTALL, IGNORECASE, NAME_CHARACTERS, Bounded
from penstock.scan.detect import kind_of_name
from penstock.scan.patterns import fits, is_beside, is_hidden, split_suffix
from penstock.types import Span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.storage.base import ObjectInfo, Store

_README, _OWN_SETTINGS = "README.md", ".huggingface.yaml"
_MAX_HEAD_BYTES = 1 << 20
_HEAD = Bounded(r"\A---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(\r?\n|\Z)", _MAX_HEAD_BYTES, DOTALL)
_SHARDED = Bounded(r"\A(?:.*/)?data/(?P<split>\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*\.[^/]*", NAME_CHARACTERS)
_KEYWORDS = {
    split: Bounded(f"(?<![a-z])(?:{split}|{words})(?![a-z])", NAME_CHARACTERS, IGNORECASE)
    for split, words in [("train", "training"), ("validation", "valid|dev|val"), ("test", "testing|eval|evaluation")]
}


@dataclass(frozen=True, slots=True)
class Subset:
    """One subset, as a repository describes it: the globs of each split, or nothing but a folder."""

    name: str
    splits: Mapping[str, tuple[str, ...]]
    folder: str = ""
    is_default: bool = False


def find_in_repository(
    store: Store, subset: str | None, split: str | None, else_suffixes: tuple[str, ...] = ()
) -> list[ObjectInfo]:
    """Return the files of a split of a repository of the Hub, by what it says of itself and by their names.

    If none of them tells a format by its name, give those that end with `else_suffixes`.
    """
    objects = {info.key: info for info in store.list()}
    texts = []
    for name in (_README, _OWN_SETTINGS):
        info = objects.get(name)
        text = None if info is None else store.read(name, Span(0, min(info.num_bytes, _MAX_HEAD_BYTES)))
        texts.append(None if text is None else text.decode("utf-8", "replace"))
    subsets = read_subsets(*texts)
    try:
        chosen = choose_files(list(objects), subsets, subset, split)
    except NoReadableFilesError:
        if not else_suffixes:
            raise
        chosen = choose_files(list(objects), subsets, subset, split, else_suffixes)
    return [objects[name] for name in chosen]


def choose_files(
    names: Sequence[str],
    subsets: Sequence[Subset],
    subset: str | None,
    split: str | None,
    more_suffixes: tuple[str, ...] = (),
) -> list[str]:
    """Return the files of a split of a subset, sorted; what is left open must have only one answer.

    Files are those whose names tell a format, or end with one of `more_suffixes`.
    """
    data = [name for name in sorted(names) if _is_data(name, more_suffixes)]
    if subsets:
        chosen = _choose_subset(subsets, subset)
        below = [name for name in data if name.startswith(chosen.folder)]
        found = {part: _matching(below, globs) for part, globs in chosen.splits.items()} or find_splits(below)
        what = f"subset {chosen.name!r}"
    else:
        if subset is not None:
            data = [name for name in data if name.startswith(f"{subset}/")]
            if not any(name.startswith(f"{subset}/") for name in names):
                raise ConfigError(
                    f"there is no subset {subset!r}: the repository has no folder and no config with that name"
                )
        found, what = find_splits(data), "the repository"
    return _choose_split({part: files for part, files in found.items() if files}, split, what)


def _is_data(name: str, more_suffixes: tuple[str, ...]) -> bool:
    is_meant = not is_hidden(name, also_underscore=False) and "__" not in {part[:2] for part in name.split("/")}
    is_told = kind_of_name(name) is not None or split_suffix(name)[0].endswith(more_suffixes)
    return is_meant and not is_beside(name) and is_told


def _matching(names: Sequence[str], globs: Sequence[str]) -> list[str]:
    found: dict[str, None] = {}
    for glob in globs:
        pattern = glob.removeprefix("./")
        exact = [name for name in names if name == pattern]
        inside = [name for name in names if name.startswith(f"{pattern.rstrip('/')}/")]
        found.update(dict.fromkeys(exact or inside or [name for name in names if fits(pattern, name)]))
    return list(found)


def _choose_subset(subsets: Sequence[Subset], wanted: str | None) -> Subset:
    by_name = {each.name: each for each in subsets}
    if wanted is not None:
        if wanted not in by_name:
            raise ConfigError(f"there is no subset {wanted!r}: the repository has {', '.join(sorted(by_name))}")
        return by_name[wanted]
    default = [each for each in subsets if each.is_default] or [each for each in subsets if each.name == "default"]
    if len(subsets) == 1 or default:
        return (default or subsets)[0]
    raise ConfigError(f"the repository has several subsets: pass subset=, one of {', '.join(sorted(by_name))}")


def _choose_split(found: Mapping[str, list[str]], wanted: str | None, what: str) -> list[str]:
    if not found:
        raise NoReadableFilesError(f"{what} has no files in a format that penstock can read in place")
    if wanted is not None:
        if wanted not in found:
            raise ConfigError(f"{what} has no split {wanted!r}: it has {', '.join(sorted(found))}")
        return found[wanted]
    if len(found) > 1:
        raise ConfigError(f"{what} has several splits: pass split=, one of {', '.join(sorted(found))}")
    return next(iter(found.values()))


def find_splits(names: Sequence[str]) -> dict[str, list[str]]:
    """Distinguish splits by names: sharded files below `data`, then folders, then files; else all is `train`."""
    sharded: dict[str, list[str]] = {}
    for name in names:
        if match := _SHARDED.fullmatch(name):
            sharded.setdefault(match["split"], []).append(name)
    if sharded:
        return sharded
    for parts in (slice(None, -1), slice(-1, None)):  # folders, and the file
        found: dict[str, list[str]] = {}
        for name in names:
            if split := _split_in(name.split("/")[parts]):
                found.setdefault(split, []).append(name)
        if found:
            return found
    return {"train": list(names)} if names else {}


def _split_in(parts: Sequence[str]) -> str | None:
    """Find the word for a split in names, where it stands alone: `train-1`, not `trainer`."""
    for part in parts:
        for split, keyword in _KEYWORDS.items():
            if keyword.search(part):
                return split
    return None


# --- What a repository says of itself ---------------------------------------------------------------------------


def read_subsets(readme: str | None, own_settings: str | None) -> list[Subset]:
    """Read the subsets that a repository describes; none if it does not."""
    settings: dict[str, Any] = {}
    head = None if readme is None else _HEAD.search(readme.removeprefix("\ufeff"))
    for text, where in ((head and head[1], f"the head of {_README}"), (own_settings, _OWN_SETTINGS)):
        if text:
            found = _load_yaml(text, where)
            settings |= found if isinstance(found, dict) else {}
    configs = settings.get("configs")
    return [_subset(config) for config in configs] if isinstance(configs, list) else []


def _load_yaml(text: str, where: str) -> Any:
    yaml = require("yaml", extra="hf", purpose="reading the configs of a repository on the Hub")
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError(f"{where} is not valid YAML: {error}") from error


def _subset(config: Any) -> Subset:
    if not isinstance(config, dict) or not isinstance(config.get("config_name", "default"), str):
        raise ConfigError("cannot understand the configs of the repository: name the files with a glob instead")
    folder = str(config.get("data_dir") or "").strip("/")
    files = config.get("data_files")
    return Subset(
        name=config.get("config_name", "default"),
        splits={split: tuple(_below(folder, glob) for glob in globs) for split, globs in _splits(files).items()},
        folder=f"{folder}/" if folder else "",
        is_default=config.get("default") is True,
    )


def _below(folder: str, glob: str) -> str:
    return f"{folder}/{glob}" if folder and not glob.startswith(folder) else glob


def _splits(files: Any) -> dict[str, list[str]]:
    """Understand `data_files`: a glob, several, or some for each split, said in one of two ways."""
    if files is None:
        return {}
    if isinstance(files, dict):
        return {str(split): _globs(globs) for split, globs in files.items()}
    if isinstance(files, list) and files and all(isinstance(each, dict) for each in files):
        return {str(each.get("split", "train")): _globs(each.get("path")) for each in files}
    return {"train": _globs(files)}


def _globs(value: Any) -> list[str]:
    globs = [value] if isinstance(value, str) else value
    if not isinstance(globs, list) or not all(isinstance(each, str) for each in globs):
        raise ConfigError("cannot understand the data_files of the repository: name the files with a glob instead")
    return globs
