"""Verification finds what is wrong, all of it, and says where."""

from __future__ import annotations

import json
import re
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from penstock import CSVWriter, MDSWriter
from penstock.cli.main import main
from penstock.data.look import verify_dataset
from penstock.formats.encodings.table import get_encoding

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.formats.encodings.base import ImageDecoder
    from tests.servers.nginx import WebServer
    from tests.servers.s3 import S3Server


def write(out: Path, **options: Any) -> None:
    with MDSWriter(**{"out": out, "columns": {"x": "int", "s": "str"}, "size_limit": 400, **options}) as writer:
        for i in range(50):
            writer.write({"x": i, "s": "text " * (i % 4)})


@pytest.mark.parametrize("compression", [None, "snappy"])
def test_a_whole_dataset(tmp_path: Path, compression: str | None) -> None:
    write(tmp_path, compression=compression, hashes=["md5", "xxh32"])
    report = verify_dataset(tmp_path, read_values=True)
    assert report.problems == ()
    assert report.num_samples == 50
    assert report.num_digests == report.num_shards * 2 * (1 if compression is None else 2)
    assert report.num_bytes == sum(path.stat().st_size for path in tmp_path.glob("shard.*"))


def test_every_problem_is_reported(tmp_path: Path) -> None:
    write(tmp_path, hashes="md5")
    names = sorted(path.name for path in tmp_path.glob("shard.*"))
    (tmp_path / names[0]).unlink()
    with (tmp_path / names[1]).open("ab") as file:
        file.write(b"!")
    data = bytearray((tmp_path / names[2]).read_bytes())
    data[-1] ^= 1
    (tmp_path / names[2]).write_bytes(data)
    problems = verify_dataset(tmp_path).problems
    assert len(problems) == 3
    for name, problem, words in zip(
        names, problems, ("is missing", "bytes, but the index says", "has the md5 digest"), strict=False
    ):
        assert name in problem
        assert words in problem


def test_values_are_read_if_asked(tmp_path: Path) -> None:
    with MDSWriter(out=tmp_path, columns={"s": "str"}) as writer:
        writer.write({"s": b"\xff\xfe"})  # bytes are stored as they are, whatever the encoding
    assert verify_dataset(tmp_path).problems == ()
    (problem,) = verify_dataset(tmp_path, read_values=True).problems
    assert "shard.00000.mds, row 0: column 's' cannot be decoded" in problem


def test_digests_count_though_values_cannot_be_decoded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with MDSWriter(out=tmp_path, columns={"s": "str"}, hashes=["md5"]) as writer:
        writer.write({"s": b"\xff\xfe"})
    assert main(["verify", str(tmp_path), "--values"]) == 1
    assert re.search(r"^1 shard, 1 sample, \d+ B, 1 digest checked: 1 problem$", capsys.readouterr().out, re.M)


def test_pickles_are_not_opened_unless_allowed(tmp_path: Path) -> None:
    with MDSWriter(out=tmp_path, columns={"p": "pkl"}) as writer:
        writer.write({"p": 1})
    assert verify_dataset(tmp_path).problems == ()
    assert "pkl" in verify_dataset(tmp_path, read_values=True).problems[0]
    assert verify_dataset(tmp_path, read_values=True, allow_unsafe_types=True).problems == ()


def image_file(kind: str) -> bytes:
    out = BytesIO()
    Image.effect_noise((40, 30), 90).convert("RGB").save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize(
    ("encoding", "stored", "words"),
    [
        ("jpeg", image_file("JPEG")[:-200], "Premature end of JPEG file"),
        ("jpeg", image_file("JPEG")[:100], "holds a JPEG file of 100 bytes with a damaged header"),
        ("jpeg", b"\xff\xd8\xff, and nothing more", "holds a JPEG file of 21 bytes with a damaged header"),
        ("png", image_file("PNG")[:-200], "truncated"),
        ("png", b"hello, hello", "holds 12 bytes that are not an image .* begin with b'hello, h'"),
        ("png", b"", "holds 0 bytes that are not an image .* begin with b''"),
    ],
)
def test_images_are_decoded_if_asked(tmp_path: Path, encoding: str, stored: bytes, words: str) -> None:
    good = image_file(encoding.upper())
    with MDSWriter(out=tmp_path, columns={"i": encoding}) as writer:
        for value in (good, stored):
            writer.write({"i": value})
    assert verify_dataset(tmp_path).problems == ()
    (problem,) = verify_dataset(tmp_path, read_values=True).problems
    assert re.fullmatch(rf"shard\.00000\.mds, row 1: column 'i' .*{words}.*", problem)


@pytest.mark.parametrize("kind", ["WEBP", "TIFF", "GIF", "BMP", "MPO"])
@pytest.mark.parametrize("image_decoder", ["pil", "array"])
def test_files_of_other_kinds_are_images_too(kind: str, image_decoder: ImageDecoder) -> None:
    for encoding in ("png", "jpeg"):  # as another library may have written it
        (found,) = get_encoding(encoding, image_decoder).decode_many([image_file(kind)])
        assert np.asarray(found).shape[:2] == (30, 40)


# --- Datasets in stores ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_dataset_behind_http(nginx: WebServer, capsys: pytest.CaptureFixture[str], compression: str | None) -> None:
    folder = nginx.files / f"verified-{compression}"
    write(folder, hashes="sha1", compression=compression)
    url = f"{nginx.url}/{folder.name}"
    assert main(["verify", url, "--values"]) == 0
    assert capsys.readouterr().out.endswith("digests checked: no problems\n")
    assert main(["inspect", f"{url}/"]) == 0
    assert capsys.readouterr().out.startswith("50 samples in ")
    shard = next(folder.glob("shard.00001.*"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)  # a copy in a cache would still be right
    next(folder.glob("shard.00002.*")).unlink()
    assert main(["verify", url, "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert ["shard.00001" in problems[0], "shard.00002" in problems[1], len(problems)] == [True, True, 2]
    assert main(["inspect", f"{nginx.url}/nothing"]) == 2
    assert f"{nginx.url}/nothing" in capsys.readouterr().err


def test_a_dataset_in_a_bucket(
    moto: S3Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the credentials that the environment gives to the training job."""
    moto.make_bucket("verified")
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL", "AWS_REGION")
    for name, value in zip(names, moto.options.values(), strict=True):
        monkeypatch.setenv(name, value)
    url = "s3://verified/train"
    with MDSWriter(out=url, columns={"x": "int"}, hashes="md5") as writer:
        writer.write({"x": 1})
    assert main(["verify", url, "--values"]) == 0
    assert main(["inspect", url]) == 0
    assert "1 digest checked: no problems\n1 sample in 1 shard " in capsys.readouterr().out


# --- The command line over it -------------------------------------------------------------------------------


def test_the_command_verify(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, hashes="sha1")
    assert main(["verify", str(tmp_path), "--values"]) == 0
    assert capsys.readouterr().out.endswith("digests checked: no problems\n")
    next(tmp_path.glob("shard.*")).unlink()
    assert main(["verify", str(tmp_path), "--json"]) == 1
    assert len(json.loads(capsys.readouterr().out)["problems"]) == 1


def test_the_command_inspect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, compression="zstd", hashes="sha1")
    assert main(["inspect", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("50 samples in ")
    assert "columns: s: str, x: int" in shown
    assert "shard.00000.mds" in shown
    assert main(["inspect", str(tmp_path), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert sum(shard["num_samples"] for shard in summary["shards"]) == summary["num_samples"] == 50


def test_the_command_inspect_of_many_shards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, size_limit=250)
    main(["inspect", str(tmp_path)])
    assert "more" in capsys.readouterr().out.splitlines()[-1]


def test_the_command_merge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("b", "a"):
        with CSVWriter(out=tmp_path / part, columns={"n": "str"}) as writer:
            writer.write({"n": part})
    assert main(["merge", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"wrote {tmp_path}/index.json\n"
    assert main(["merge", str(tmp_path), str(tmp_path / "b" / "index.json")]) == 0
    capsys.readouterr()
    main(["inspect", str(tmp_path), "--json"])
    assert [shard["name"] for shard in json.loads(capsys.readouterr().out)["shards"]] == ["b/shard.00000.csv"]


def test_an_error_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("penstock: there is no dataset in ")


def test_what_others_wrote_does_not_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Names of columns, encodings, hashes and formats come from an index, and so do parts of every problem."""
    clear = "\x1b[2J\x07\u202e\r"
    with CSVWriter(out=tmp_path, columns={"x": "int"}, hashes="sha1") as writer:
        writer.write({"x": 1})
    index = tmp_path / "index.json"
    good = json.loads(index.read_bytes())
    for field, value in (("column_names", [clear]), ("hashes", [clear]), ("format", clear), ("version", clear)):
        bad = json.loads(json.dumps(good))
        bad["shards"][0][field] = value
        index.write_text(json.dumps(bad))
        main(["inspect", str(tmp_path)])
        main(["verify", str(tmp_path), "--values"])
    bad = json.loads(json.dumps(good))
    bad["shards"][0]["raw_data"]["hashes"] = {clear: clear, "sha1": clear}
    index.write_text(json.dumps(bad))
    main(["verify", str(tmp_path)])
    shown = "".join(capsys.readouterr())
    assert "\\x1b[2J\\x07\\u202e\\r" in shown
    assert not set(shown) & set(clear[0] + clear[4:])
