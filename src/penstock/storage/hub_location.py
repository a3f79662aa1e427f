"""What an `hf://` URL names, and who asks for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from penstock.errors import ConfigError
from penstock.outside_text import NAME_CHARACTERS, Bounded
from penstock.storage.base import shown_url
from penstock.storage.options import first_set, option_names, take_options

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_ENDPOINT = "https://huggingface.co"
DEFAULT_REVISION = "main"

_KINDS = {"datasets": "dataset", "models": "model", "spaces": "space", "buckets": "bucket"}
_COMMIT = Bounded(r"[0-9a-f]{40}", 40)
_SPECIAL_REVISION = Bounded(r"\Arefs/(convert/[\w.-]+|pr/\d+)(?=/|$)", NAME_CHARACTERS)  # alone with a bare slash
_OPTIONS = option_names("token", "endpoint endpoint_url", "revision")


def is_commit(revision: str | None) -> bool:
    """Return whether a revision is a commit, and not a branch."""
    return revision is not None and _COMMIT.fullmatch(revision) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class HubLocation:
    """A folder of a repository of the Hub, or of a bucket, which has no revisions."""

    kind: str  # dataset, model, space or bucket
    repo: str
    revision: str = DEFAULT_REVISION
    root: str = ""
    endpoint: str = DEFAULT_ENDPOINT
    token: str | None = field(default=None, repr=False)

    @property
    def is_bucket(self) -> bool:
        """Return whether its files may change without a trace."""
        return self.kind == "bucket"

    @property
    def is_commit(self) -> bool:
        """Return whether the revision is a commit, which never changes."""
        return is_commit(self.revision)

    def path(self, key: str) -> str:
        """Return the path of a key within the repository."""
        return f"{self.root}/{key}" if self.root else key

    def key(self, path: str) -> str | None:
        """Return the key of a path within the repository, or None if it lies elsewhere."""
        root = f"{self.root}/" if self.root else ""
        return path[len(root) :] if path.startswith(root) else None

    def file_url(self, path: str, commit: str) -> str:
        """Return the address that a file is read from."""
        if self.is_bucket:
            return f"{self.endpoint}/buckets/{self.repo}/resolve/{quote(path, safe='')}"
        prefix = "" if self.kind == "model" else f"{self.kind}s/"
        return f"{self.endpoint}/{prefix}{self.repo}/resolve/{commit}/{quote(path)}"

    def __str__(self) -> str:
        revision = "" if self.is_bucket or self.revision == DEFAULT_REVISION else f"@{self.revision}"
        return "/".join(filter(None, (f"hf://{self.kind}s", self.repo + revision, self.root)))


def location_of(url: str, options: Mapping[str, Any]) -> HubLocation:
    """Understand a URL, with what `resolve_hub` said."""
    kind, repo, revision, root = parse_hub_url(url)
    if revision is not None and options.get("revision") not in (None, revision):
        raise ConfigError(f"{shown_url(url)} names one revision, and storage_options another: {options['revision']}")
    return HubLocation(
        kind=kind,
        repo=repo,
        revision=revision or options.get("revision") or DEFAULT_REVISION,
        root=root,
        endpoint=options.get("endpoint") or DEFAULT_ENDPOINT,
        token=options.get("token"),
    )


def parse_hub_url(url: str) -> tuple[str, str, str | None, str]:
    """Return kind, repository, revision (if any) and path of `hf://[kind/]org/name[@revision][/path]`."""
    path = url.partition("://")[2].strip("/")
    first, _, rest = path.partition("/")
    kind = _KINDS.get(first)
    head, at, tail = (rest if kind else path).partition("@")
    if not at or head.count("/") != 1:  # an @ further on belongs to a file
        parts = (rest if kind else path).split("/", 2)
        repo, revision, root = "/".join(parts[:2]), None, "".join(parts[2:])
    else:
        repo = head
        special = _SPECIAL_REVISION.search(tail)
        revision = special.group() if special else tail.partition("/")[0]
        root = tail[len(revision) :].strip("/")
        revision = unquote(revision)
    if repo.count("/") != 1 or not all(repo.split("/")) or revision == "":
        raise ConfigError(
            f"{shown_url(url)} is not a valid place on the Hub: write hf://datasets/org/name[@revision]/path"
        )
    if revision and kind == "bucket":
        raise ConfigError(f"{shown_url(url)} names a revision, but buckets have no revisions")
    return kind or "model", repo, revision, root


def at_revision(url: str, revision: str) -> str:
    """Return a URL that names a revision, instead of the branch that it names or leaves open."""
    kind, repo, _, root = parse_hub_url(url)
    shown = next(name for name, value in _KINDS.items() if value == kind)
    return "/".join(filter(None, (f"hf://{shown}", f"{repo}@{quote(revision, safe='')}", root)))


def resolve_hub(url: str, options: Mapping[str, Any], environ: Mapping[str, str]) -> dict[str, Any]:
    """Find endpoint and token: what the user gave first, then the environment, then the file of `hf auth login`."""
    taken = take_options("hf", options, _OPTIONS)
    endpoint = taken.get("endpoint") or environ.get("HF_ENDPOINT") or DEFAULT_ENDPOINT
    resolved = {**taken, "endpoint": str(endpoint).rstrip("/")}
    token = taken.get("token", True)
    if token is True:  # as Hugging Face's own functions understand it: the user's
        token = first_set(environ, "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN") or _token_in_file(environ)
    resolved["token"] = token or None
    location_of(url, resolved)
    return resolved


def _token_in_file(environ: Mapping[str, str]) -> str | None:
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    cache = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    folder = Path(environ.get("HF_HOME") or cache / "huggingface")
    path = Path(environ.get("HF_TOKEN_PATH") or folder / "token")
    return path.read_text().strip() if path.is_file() else None
