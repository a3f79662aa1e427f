"""Which data a run reads, as far as its order does not say so: versions of files, and commits of repositories.

A state carries both. Other versions of files that have the same names, sizes and rows are worth a warning; of a
repository, the commit of the state is what is read from then on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.user_warnings import warn_user

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.data.stream import Stream


@dataclass(frozen=True, slots=True)
class DataIdentity:
    """Of each stream, by name."""

    places: tuple[str, ...] = ()  # where the data are, in words that are the same on all ranks
    versions: dict[str, str] = field(default_factory=dict)  # of files without an index of their own
    revisions: dict[str, str] = field(default_factory=dict)  # of repositories
    code: dict[str, list[list[str]]] = field(default_factory=dict)  # of functions: their names and digests

    def state(self) -> dict[str, Any]:
        """Return what a state carries; nothing where there is nothing to say."""
        fields: dict[str, dict[str, Any]] = {"versions": self.versions, "revisions": self.revisions, "code": self.code}
        return {name: dict(value) for name, value in fields.items() if value}

    def compare(self, state: Mapping[str, Any], fingerprints: Mapping[str, str]) -> None:
        """Warn if files have other versions than when a state was saved, though the same names and sizes.

        Streams whose fingerprints differ are other data: going on from the state says so.
        """
        before, streams = _mapping(state, "versions"), _mapping(state, "streams")
        for name, code in self.code.items():
            warn_of_other_code(_mapping(state, "code").get(name), code)
        changed = [
            name
            for name, version in self.versions.items()
            if before.get(name, version) != version and streams.get(name, "") in ("", fingerprints[name])
        ]
        if changed:
            warn_user(
                f"the files of stream {changed[0]!r} are not the versions that the state was saved with, or are a copy"
                " of them: their names, sizes and numbers of rows are the same, so penstock continues with them"
            )


def warn_of_other_code(before: Any, now: Sequence[Sequence[str]]) -> None:
    """Warn if functions are others than when a state was saved: people mend them, and go on."""
    changed = [name for name, digest in now if [name, digest] not in before] if isinstance(before, list) else []
    if changed:
        warn_user(
            f"the code of {', '.join(dict.fromkeys(changed))}, or what it refers to, is not what it was when the state"
            " was saved: penstock continues with the code of now"
        )


def adopt_revisions(streams: Sequence[Stream], known: DataIdentity, state: Mapping[str, Any]) -> bool:
    """Have streams read the commits that a state was saved with; tell whether any has to be opened again."""
    names = [str(number) if stream.name is None else stream.name for number, stream in enumerate(streams)]
    saved = _mapping(state, "revisions")
    is_any = False
    for name, stream in zip(names, streams, strict=True):
        commit = saved.get(name)
        if isinstance(commit, str) and known.revisions.get(name, commit) != commit:
            is_any |= stream.adopt_revision(commit)
    return is_any


def _mapping(state: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = state.get(name)
    return value if isinstance(value, Mapping) else {}
