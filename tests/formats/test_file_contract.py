"""The formats of files that other programs write keep the contract that plug-ins are held to."""

from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING, Any, ClassVar

from penstock.testing import FileFormatContract
from tests.formats.webdataset.test_format import tar_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from penstock.types import Sample

ROWS: list[Sample] = [
    {"count": 0, "name": "", "score": 0.5},
    {"count": -(2**40), "name": "naïve café 🙂\nof two lines", "score": -0.0},
    {"count": 3, "name": '"quoted", \\', "score": 1e300},
    {"count": 2**63 - 1, "name": "   ", "score": float("-inf")},
]


class TestJSONLines(FileFormatContract):
    format_name = "jsonl"
    samples = ROWS

    def write(self, samples: Sequence[Sample]) -> bytes:
        return b"\xef\xbb\xbf\r\n" + "\r\n\n".join(map(json.dumps, samples)).encode()


class TestCSV(FileFormatContract):
    format_name = "csv_file"
    samples = ROWS
    settings: ClassVar[Mapping[str, Any]] = {"types": {"count": "int", "score": "float"}}
    separator = ","

    def write(self, samples: Sequence[Sample]) -> bytes:
        out = io.StringIO(newline="")
        writer = csv.writer(out, delimiter=self.separator)
        writer.writerow(samples[0])
        writer.writerows(sample.values() for sample in samples)
        return out.getvalue().encode()


class TestTSV(TestCSV):
    format_name = "tsv_file"
    separator = "\t"


class TestText(FileFormatContract):
    format_name = "text"
    samples: ClassVar[Sequence[Sample]] = [{"text": "one"}, {"text": ""}, {"text": "naïve 🙂"}, {"text": " \t"}]

    def write(self, samples: Sequence[Sample]) -> bytes:
        return "".join(f"{sample['text']}\n" for sample in samples).encode()


class TestWebDataset(FileFormatContract):
    format_name = "webdataset"
    samples: ClassVar[Sequence[Sample]] = [
        {
            "__key__": key,
            "__url__": "folder/some.file",
            "cls": number,
            "json": [number],
            "txt": key,
            "x.bin": b"\0" * 600,
        }
        for number, key in enumerate(["a", "folder/b", "../c", "ü" * 90, "/e"])
    ]

    def write(self, samples: Sequence[Sample]) -> bytes:
        files = []
        for sample in samples:
            key = sample["__key__"]
            files += [(f"{key}.cls", b"%d" % sample["cls"]), (f"{key}.json", json.dumps(sample["json"]).encode())]
            files += [(f"{key}.TXT", sample["txt"].encode()), (f"{key}.x.bin", sample["x.bin"])]
        return tar_of(files)
