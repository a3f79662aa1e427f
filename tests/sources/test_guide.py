"""The calls that guides to sharded sources show, with the options that they show, against real servers.

What only a test needs, where the server is, comes from the environment, as it does for every tool of these clouds.
"""

from __future__ import annotations

import gzip
import io
import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import (
    AsyncDataLoader,
    ChatTemplate,
    ChatTemplateTransform,
    CsvShardedSource,
    DatasetConfig,
    HuggingFaceShardedSource,
    JsonShardedSource,
    LoadStageConfig,
    ParquetShardedSource,
    Pipeline,
    PipelineConfig,
    Stream,
    StreamingDataset,
    TextShardedSource,
    TransformedShardedSource,
    create_source,
    expand_data_files,
)
from penstock.errors import StoreError
from penstock.storage.base import open_store, resolve_store
from tests.servers.azurite import ACCOUNT, KEY
from tests.servers.hub import TOKEN, Repo, running_hub
from tests.servers.script import Answer, run_script
from tests.sources.cutting import plain
from tests.streaming import private_places

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.servers.azurite import AzureServer
    from tests.servers.nginx import WebServer
    from tests.servers.s3 import S3Server
    from tests.servers.script import Request

ROWS: list[dict[str, Any]] = [{"id": n, "text": f"text {n}"} for n in range(24)]
SOURCES: dict[str, Any] = {
    "parquet": ParquetShardedSource,
    "jsonl": JsonShardedSource,
    "csv": CsvShardedSource,
    "txt": TextShardedSource,
}


@pytest.fixture(autouse=True)
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # no credentials of the user who runs this
    with private_places() as folder:
        yield folder


def parquet(rows: list[dict[str, Any]]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=5)
    return sink.getvalue()


def files() -> dict[str, bytes]:
    """Return two files of each kind, in folders within folders, and one that is compressed."""
    made = {}
    for part in range(2):
        rows = ROWS[12 * part : 12 * part + 12]
        made[f"data/year={part}/part-{part}.parquet"] = parquet(rows)
        made[f"data/year={part}/part-{part}.jsonl"] = "".join(json.dumps(row) + "\n" for row in rows).encode()
        made[f"data/part-{part}.csv"] = b"id,text\n" + b"".join(b"%(id)d,%(text)b\n" % _bytes(row) for row in rows)
        made[f"data/part-{part}.txt"] = b"".join(b"%(text)b\n" % _bytes(row) for row in rows)
    made["packed/a.jsonl.gz"] = gzip.compress(made["data/year=0/part-0.jsonl"])
    return made


def _bytes(row: dict[str, Any]) -> dict[bytes, Any]:
    return {b"id": row["id"], b"text": row["text"].encode()}


def texts(samples: Any) -> list[str]:
    return [sample["text"] for sample in samples]


def check_store(root: str, options: dict[str, Any] | None) -> None:
    """Read all kinds of files by globs, names, lists and folders; at a row; as a stream, too."""
    all_texts = texts(ROWS)
    for end, make in SOURCES.items():
        assert texts(make(f"{root}/data/**/*.{end}", storage_options=options)) == all_texts, end
    names = [f"{root}/data/year={part}/part-{part}.parquet" for part in (1, 0)]
    both = ParquetShardedSource(names, storage_options=options, columns=["text"])
    assert list(both.shard_names) == names
    assert list(both) == [{"text": text} for text in all_texts[12:] + all_texts[:12]]
    # The literal URL that was given is the name of the shard.
    one = JsonShardedSource(f"{root}/data/year=1/part-1.jsonl", storage_options=options, jsonl=True)
    assert texts(one.open_shard(f"{root}/data/year=1/part-1.jsonl")) == all_texts[12:]
    assert texts(one.open_shard_at_row(f"{root}/data/year=1/part-1.jsonl", row=7)) == all_texts[19:]
    assert texts(both.open_shard_at_row(names[0], row=12)) == []
    assert texts(JsonShardedSource(f"{root}/packed/a.jsonl.gz", storage_options=options)) == all_texts[:12]
    assert texts(JsonShardedSource(f"{root}/data", storage_options=options)) == all_texts
    assert expand_data_files(f"{root}/data/year=?/*.parquet", options) == names[::-1]
    config = DatasetConfig(data_files=f"{root}/data/*.csv", storage_options=options)
    assert texts(create_source(config)) == all_texts
    streamed = StreamingDataset(streams=[Stream(source=both)], shuffle=True, batch_size=4)
    assert sorted(texts(streamed)) == sorted(all_texts)


def upload(root: str, options: dict[str, Any], folder: Path) -> None:
    store = open_store(resolve_store(root, options))
    for number, (name, content) in enumerate(files().items()):
        (folder / str(number)).write_bytes(content)
        store.upload(folder / str(number), name)


# --- Clouds ---------------------------------------------------------------------------------------------------


def test_s3_with_keys_a_region_and_nothing(moto: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moto.make_bucket("guide")
    upload("s3://guide/sets", {**moto.options, "acl": "public-read"}, tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL", moto.endpoint)
    keys: dict[str, Any] = {"key": "test-key", "secret": "test-secret"}
    check_store("s3://guide/sets", {**keys, "client_kwargs": {"region_name": "us-east-1"}})
    shown: list[dict[str, Any]] = [{**keys, "endpoint_url": moto.endpoint}, {"anon": True}, {"s3": keys}]
    for options in shown:
        source = ParquetShardedSource("s3://guide/sets/data/**/*.parquet", storage_options=options)
        assert texts(source) == texts(ROWS)


def test_azure_with_the_key_of_an_account(
    azurite: AzureServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    azurite.make_container("guide")
    upload("az://guide/sets", azurite.options, tmp_path)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", azurite.endpoint)
    options = {"account_name": ACCOUNT, "account_key": KEY}
    check_store("az://guide/sets", options)
    check_store("abfs://guide/sets", options)
    with pytest.raises(StoreError):
        ParquetShardedSource("az://guide/sets/data/**/*.parquet", {**options, "account_key": "d3Jvbmc="})


def service_account() -> dict[str, str]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return {
        "type": "service_account",
        "private_key": key.decode(),
        "private_key_id": "id-of-the-key",
        "client_email": "me@project.iam.gserviceaccount.com",
        "client_id": "1",
        "token_uri": "http://127.0.0.1:9/token",
    }


def test_gcs_with_the_account_of_the_machine_and_with_a_key_file(
    gcs_door: str, moto: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moto.make_bucket("guide-gcs")
    upload("gs://guide-gcs/sets", {"bearer_token": "test-token", "endpoint": gcs_door}, tmp_path)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_door)

    def tell_token(request: Request) -> Answer:
        assert request.headers["metadata-flavor"] == "Google"
        body = json.dumps({"access_token": "of-the-machine", "expires_in": 3600, "token_type": "Bearer"})
        return Answer(200, body.encode(), {"Content-Type": "application/json"})

    with run_script(tell_token) as metadata:
        monkeypatch.setenv("GCE_METADATA_HOST", metadata.url.removeprefix("http://"))
        check_store("gs://guide-gcs/sets", {"token": "cloud"})
        assert any("service-accounts/default/token" in request.path for request in metadata.requests)
    account = service_account()
    (tmp_path / "key.json").write_text(json.dumps(account))
    check_store("gs://guide-gcs/sets", {"token": str(tmp_path / "key.json")})
    inline = ParquetShardedSource("gs://guide-gcs/sets/data/**/*.parquet", storage_options={"token": account})
    assert texts(inline) == texts(ROWS)


# --- The web and the Hub --------------------------------------------------------------------------------------


def test_files_of_a_web_server_by_name(nginx: WebServer) -> None:
    for name, content in files().items():
        (nginx.files / "guide" / name).parent.mkdir(parents=True, exist_ok=True)
        (nginx.files / "guide" / name).write_bytes(content)
    names = [f"{nginx.url}/guide/data/year={part}/part-{part}.parquet" for part in range(2)]
    source = ParquetShardedSource(names)
    assert list(source.shard_names) == names
    assert texts(source) == texts(ROWS)
    assert texts(source.open_shard_at_row(names[1], row=3)) == texts(ROWS[15:])
    one = JsonShardedSource(f"{nginx.url}/guide/packed/a.jsonl.gz")
    assert plain(one) == plain(ROWS[:12])
    assert sorted(texts(StreamingDataset(streams=[Stream(source=source)], shuffle=True))) == sorted(texts(ROWS))


def test_a_web_server_that_wants_a_header() -> None:
    content = b'{"text": "a"}\n{"text": "b"}\n'

    def answer(request: Request) -> Answer:
        if request.headers.get("authorization") != "Bearer secret":
            return Answer(401)
        head = {"ETag": '"1"', "Accept-Ranges": "bytes"}
        if "range" not in request.headers:
            return Answer(200, content, head)
        begin, end = (int(each or len(content) - 1) for each in request.headers["range"].split("=")[1].split("-"))
        end = min(end, len(content) - 1)
        head["Content-Range"] = f"bytes {begin}-{end}/{len(content)}"
        return Answer(206, content[begin : end + 1], head)

    with run_script(answer) as server:
        options = {"headers": {"Authorization": "Bearer secret"}}
        assert texts(JsonShardedSource(f"{server.url}/a.jsonl", storage_options=options)) == ["a", "b"]
        with pytest.raises(StoreError):
            JsonShardedSource(f"{server.url}/a.jsonl")


def test_a_dataset_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    with running_hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        repo = hub.repos["datasets/org/words"] = Repo(is_private=True)
        content = {"README.md": _card()}
        for part in range(2):
            content[f"en/train-{part:05}-of-00002.parquet"] = parquet(ROWS[12 * part : 12 * part + 12])
            content[f"de/train-{part:05}-of-00002.parquet"] = parquet(ROWS[:3])
        repo.commit("main", content)
        source = HuggingFaceShardedSource("org/words", split="train", subset="en", streaming=True)
        first = next(iter(source.open_shard(source.shard_names[0])))
        assert first == ROWS[0]
        assert texts(source) == texts(ROWS)
        assert len(HuggingFaceShardedSource("org/words", split="train", subset="de")) == 6
        by_url = ParquetShardedSource("hf://datasets/org/words/en/*.parquet")
        assert texts(by_url) == texts(ROWS)
        streamed = StreamingDataset(streams=[Stream(source=source)], shuffle=True, batch_size=4)
        assert sorted(texts(streamed)) == sorted(texts(ROWS))


def _card() -> bytes:
    configs = [{"config_name": name, "data_files": [{"split": "train", "path": f"{name}/*"}]} for name in ("en", "de")]
    return f"---\nconfigs: {json.dumps(configs)}\n---\n# words\n".encode()


# --- The rest of the guide ------------------------------------------------------------------------------------


def test_resume_by_shard_and_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.parquet").write_bytes(parquet(ROWS))
    source = ParquetShardedSource("data/*.parquet")
    checkpoint: dict[str, Any] = {"shard": source.shard_names[0], "row": 10}
    assert texts(source.open_shard_at_row(checkpoint["shard"], row=checkpoint["row"])) == texts(ROWS[10:])
    # Each worker takes its own shards.
    mine = source.shard_names[0::2]
    assert [row for name in mine for row in source.open_shard(name)] == ROWS


def test_transforms_batches_and_a_pipeline(tmp_path: Path) -> None:
    messages = [{"messages": [{"role": "user", "content": f"hi {n}"}]} for n in range(20)]
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, messages)))
    (tmp_path / "a.parquet").write_bytes(parquet(ROWS))
    tokenizer = ChatTemplate("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    chats = TransformedShardedSource(
        JsonShardedSource(f"{tmp_path}/chat.jsonl"), transform=ChatTemplateTransform(tokenizer)
    )
    assert texts(chats)[3] == "<user>hi 3"
    loader = AsyncDataLoader(
        source=chats,
        batch_size=4,
        prefetch_enabled=True,
        prefetch_workers=2,
        prefetch_buffer_size=4,
        shuffle_buffer_size=10,
        seed=42,
    )
    assert sorted(text for batch in loader for text in batch["text"]) == sorted(texts(chats))
    config = PipelineConfig(
        datasets=[DatasetConfig(data_files=f"{tmp_path}/*.parquet", type="parquet")],
        streaming=True,
        load=LoadStageConfig(batch_size=8, prefetch_enabled=True, prefetch_buffer_size=4, shuffle_buffer_size=10),
    )
    batches = list(Pipeline.from_config(config).source().load().build())
    assert sorted(int(n) for batch in batches for n in batch["id"]) == list(range(24))
