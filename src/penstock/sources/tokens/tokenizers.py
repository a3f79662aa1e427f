"""Tokenizers by name, path or object: many texts at once, and a hash of what they do."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

from penstock.errors import ConfigError, DataError, MissingExtraError, StoreError
from penstock.extras import require
from penstock.units import check_whole, checks_making

Overflow = Literal["truncate", "split", "drop"]

_FILE = "tokenizer.json"


@checks_making
@dataclass(frozen=True, slots=True)
class TokenizerConfig:
    """Which tokenizer to use, and how.

    Args:
        name_or_path: A `tokenizer.json`, a folder with one, or a name on the Hugging Face Hub. What ends in `.json`, or
            begins with `./`, `/` or `~`, is never looked up there.
        max_length: The most tokens of a sample, special ones included.
        truncation: Cut longer texts; False leaves them as long as they are, unless `overflow` says otherwise.
        padding: Pad all samples to `max_length`. To pad to the longest of a batch, use `PadCollator` in the loader.
        add_special_tokens: Add the tokens that the tokenizer puts around a text.
        return_attention_mask: Also return `attention_mask`.
        trust_remote_code: Run code that comes with a tokenizer on the Hub.
        overflow: What to do with longer texts: `"truncate"` keeps the beginning, `"split"` makes several samples,
            `"drop"` none.
        stride: By how many tokens the samples of a split text overlap.
    """

    name_or_path: str
    max_length: int = 2048
    truncation: bool = True
    padding: bool = False
    add_special_tokens: bool = True
    return_attention_mask: bool = True
    trust_remote_code: bool = False
    overflow: Overflow | None = None
    stride: int = 0

    def __post_init__(self) -> None:
        check_whole("max_length", self.max_length, 1)
        check_whole("stride", self.stride, 0)
        if self.overflow is not None and self.overflow not in get_args(Overflow):
            raise ConfigError(f"overflow={self.overflow!r} is unknown: use {', '.join(get_args(Overflow))}")
        if self.padding not in (True, False, "max_length"):
            raise ConfigError(
                f"padding={self.padding!r} is unknown: use True, which pads to max_length, or False; to pad batches,"
                " use PadCollator"
            )
        if self.stride and self.overflow != "split":
            raise ConfigError("stride= only works with overflow='split'")
        if self.stride >= self.max_length:
            raise ConfigError(f"stride={self.stride} must be below max_length={self.max_length}")

    @property
    def when_long(self) -> Overflow | None:
        """What becomes of texts that are too long; None: they stay."""
        return self.overflow or ("truncate" if self.truncation else None)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields."""
        return asdict(self)


class TokenizerManager:
    """Loads tokenizers, each once for what is asked of it."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def get_tokenizer(self, config: TokenizerConfig | str, **options: Any) -> Any:
        """Return the tokenizer of a configuration; options go to the library that loads it."""
        config = TokenizerConfig(config) if isinstance(config, str) else config
        key = json.dumps([config.name_or_path, config.trust_remote_code, options], sort_keys=True, default=repr)
        if key not in self._loaded:
            self._loaded[key] = load_tokenizer(config, **options)
        return self._loaded[key]


def load_tokenizer(config: TokenizerConfig, **options: Any) -> Any:
    """Load a tokenizer: a file by the tokenizers library, a name by transformers if that is installed."""
    path = Path(config.name_or_path).expanduser()
    file = path / _FILE if path.is_dir() else path
    library = require("tokenizers", extra="text", purpose="tokenizing")
    if file.is_file() and not options:
        try:
            return library.Tokenizer.from_file(str(file))
        except Exception as error:  # the library raises this very class
            raise DataError(f"{file} is not a tokenizer: {error}") from error
    if path.is_absolute() or path.suffix == ".json" or config.name_or_path.startswith((".", "~")):
        raise ConfigError(
            f"there is no tokenizer at {config.name_or_path}: pass a {_FILE}, a folder with one, or a name on the Hub"
        )
    try:
        transformers = require("transformers", extra="text", purpose="loading a tokenizer by name")
        load = partial(transformers.AutoTokenizer.from_pretrained, trust_remote_code=config.trust_remote_code)
    except MissingExtraError:
        if config.trust_remote_code or options:
            raise
        load = library.Tokenizer.from_pretrained
    try:
        return load(config.name_or_path, **options)
    except Exception as error:  # of classes of three libraries
        reason = str(error).partition("\n")[0]
        raise StoreError(
            f"the tokenizer {config.name_or_path!r} cannot be loaded from the Hugging Face Hub ({reason}): check the"
            f" name, or write a file as ./{_FILE}"
        ) from error


def tokenizer_hash(tokenizer: Any) -> str | None:
    """Return a hash of what a tokenizer does, or None if its content cannot be read."""
    backend = _backend(tokenizer)
    if backend is not None:
        return hashlib.sha256(backend.to_str().encode()).hexdigest()[:32]
    if hasattr(tokenizer, "get_vocab"):
        text = json.dumps([type(tokenizer).__qualname__, sorted(tokenizer.get_vocab().items())], default=repr)
        return hashlib.sha256(text.encode()).hexdigest()[:32]
    return None


class BatchEncoder:
    """Encodes many texts at once, without special tokens; and knows which of those go around a text."""

    def __init__(self, tokenizer: Any) -> None:
        backend = _backend(tokenizer)
        self._tokenizer: Any = None
        if backend is not None:
            # A copy: settings of the original do not count here.
            self._tokenizer = type(backend).from_str(backend.to_str())
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
        elif callable(tokenizer):
            self._call = tokenizer
        else:
            raise ConfigError(
                f"{type(tokenizer).__name__} is not a tokenizer: pass one of the tokenizers or transformers library"
            )
        self.pad_id = _pad_id(tokenizer, self._tokenizer)
        self.before, self.after = self._find_special_tokens()

    def encode(self, texts: list[str], *, special: bool = False) -> list[list[int]]:
        """Return the tokens of each text."""
        if self._tokenizer is None:
            encoded: list[list[int]] = self._call(texts, add_special_tokens=special)["input_ids"]
            return encoded
        many = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)
        return [each.ids for each in many(texts, add_special_tokens=special)]

    def _find_special_tokens(self) -> tuple[list[int], list[int]]:
        """Find the tokens that the tokenizer puts before and after any text."""
        word = "a"
        (plain,), (whole,) = self.encode([word]), self.encode([word], special=True)
        for begin in range(len(whole) - len(plain) + 1):
            if whole[begin : begin + len(plain)] == plain:
                return whole[:begin], whole[begin + len(plain) :]
        raise ConfigError(
            "the tokenizer encodes text differently when it adds special tokens: pass add_special_tokens=False"
        )


def _backend(tokenizer: Any) -> Any:
    """Return the tokenizer of the tokenizers library within one of transformers, or itself."""
    if hasattr(tokenizer, "encode_batch") and hasattr(tokenizer, "to_str"):
        return tokenizer
    return getattr(tokenizer, "backend_tokenizer", None)


def _pad_id(tokenizer: Any, backend: Any) -> int:
    given = getattr(tokenizer, "pad_token_id", None)
    if given is not None:
        return int(given)
    for name in ("<pad>", "[PAD]", "<|pad|>"):
        found = None if backend is None else backend.token_to_id(name)
        if found is not None:
            return int(found)
    return 0
