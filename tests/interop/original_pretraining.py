"""Draws pretraining samples with the scripts of a release of MosaicML Streaming, which need TensorFlow for files alone.

usage: original_pretraining.py FOLDER-OF-THE-RELEASE VOCABULARY SETTINGS FILES... > pairs.json
"""

from __future__ import annotations

import json
import random
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any


class Files:
    GFile = staticmethod(lambda path, mode: open(path, mode, encoding="utf-8"))  # noqa: PTH123, SIM115


def stub_tensorflow() -> None:
    flags = SimpleNamespace(
        FLAGS=SimpleNamespace(preserve_unused_tokens=False),
        **{f"DEFINE_{kind}": lambda *_: None for kind in ("string", "integer", "float", "bool")},
    )
    stub: Any = ModuleType("tensorflow.compat.v1")
    stub.flags, stub.gfile, stub.logging = flags, Files, SimpleNamespace(info=print)
    package: Any = ModuleType("tensorflow")
    compat: Any = ModuleType("tensorflow.compat")
    package.compat, compat.v1 = compat, stub
    six: Any = ModuleType("six")
    six.PY2, six.PY3 = False, True
    absl: Any = ModuleType("absl")
    absl.flags = flags
    streaming: Any = ModuleType("streaming")
    streaming.MDSWriter = None  # nothing is written
    sys.modules |= {"streaming": streaming, "absl": absl, "six": six}
    sys.modules |= {"tensorflow": package, "tensorflow.compat": compat, "tensorflow.compat.v1": stub}


def load(folder: Path, name: str) -> Any:
    spec = spec_from_file_location(name, folder / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = sys.modules[f"streaming.text.convert.enwiki.mds.{name}"] = module
    spec.loader.exec_module(module)
    return module


def main(release: str, vocabulary: str, settings: str, *files: str) -> None:
    stub_tensorflow()
    folder = Path(release) / "streaming/text/convert/enwiki/mds"
    tokenization, script = load(folder, "tokenization"), load(folder, "create_pretraining_data")
    tokenizer = tokenization.FullTokenizer(vocab_file=vocabulary, do_lower_case=True)
    given = json.loads(settings)
    made = script.create_training_instances(
        list(files),
        tokenizer,
        given["max_seq_length"],
        given["dupe_factor"],
        given["short_seq_prob"],
        given["masked_lm_prob"],
        given["max_predictions_per_seq"],
        random.Random(given["seed"]),
    )
    to_ids = tokenizer.convert_tokens_to_ids
    pairs = [
        [
            to_ids(each.tokens),
            each.segment_ids,
            each.is_random_next,
            each.masked_lm_positions,
            to_ids(each.masked_lm_labels),
        ]
        for each in made
    ]
    json.dump(pairs, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
