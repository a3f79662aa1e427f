"""A web server of videos on this machine, some of which are missing, slow or broken; and CSV files that name them."""

from __future__ import annotations

import csv
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

from penstock import MDSWriter
from penstock.recipes.multimodal.extract_webvid_videos import recipe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = ("videoid", "contentUrl", "duration", "page_dir", "name")


def video(number: int) -> bytes:
    return b"\0\0\0\x18ftypmp42" + b"%04d" % number * (20 + number)


class _Videos(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        kind, _, number = self.path.strip("/").removesuffix(".mp4").partition("-")
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        if kind == "missing":
            self.send_error(404)
            return
        if kind == "busy" and self.server.asked.count(self.path) == 1:  # type: ignore[attr-defined]
            self.send_error(503)
            return
        data = b"<html>sorry</html>" if kind == "page" else video(int(number))
        self.send_response(200)
        self.send_header("Content-Length", str(len(data) + (9 if kind == "cut" else 0)))
        self.end_headers()
        if kind == "slow":
            self.wfile.write(data[:9])
            time.sleep(2)
        else:
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def video_server() -> Iterator[tuple[str, list[str]]]:
    """Serve videos; yields the address, and the list of what was asked for."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Videos)
    server.asked = []  # type: ignore[attr-defined]
    server.daemon_threads = True
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", server.asked  # type: ignore[attr-defined]
    finally:
        server.shutdown()
        server.server_close()


def write_csv(path: Path, url: str, kinds: list[str], *, page_idx: bool = True) -> list[dict[str, Any]]:
    """Write rows of WebVid, a kind of reply each, and return what becomes of those that can be had."""
    rows, names = [], [*NAMES, *(["page_idx"] if page_idx else [])]
    with path.open("w", newline="") as file:
        lines = csv.DictWriter(file, names)
        lines.writeheader()
        for number, kind in enumerate(kinds):
            address = "file:///etc/passwd" if kind == "file" else f"{url}/{kind}-{number}.mp4"
            duration = "10 s" if kind == "odd" else f"PT00H01M{number % 60:02}S"
            row = {"videoid": f"{7000 + number}", "contentUrl": address, "duration": duration}
            row |= {
                "page_dir": "000001_000050",
                "name": f"a cat, or a dog: {kind}" if number % 2 else f'"{kind}", no pets',
            }
            row |= {"page_idx": f"{number}"} if page_idx else {}
            lines.writerow(row)
            if kind in ("good", "busy"):
                rows.append({"page_idx": "", **row, "duration": 60 + number % 60, "content": video(number)})
    return rows


NUM_VIDEOS = 40


def video_row(number: int) -> dict[str, Any]:
    return {"videoid": f"{number}", "duration": number, "content": video(number)}


def make_webvid(folder: Path) -> Path:
    """Write videos inside shards to `inside`, and extract them to `outside` and `videos`."""
    columns = {"videoid": "str", "duration": "int", "content": "bytes"}
    with MDSWriter(out=str(folder / "inside"), columns=columns, size_limit=2000) as writer:
        for number in range(NUM_VIDEOS):
            writer.write(video_row(number))
    extract(folder)
    return folder


def extract(folder: Path, name: str = "", **flags: Any) -> None:
    places = {"in_root": folder / "inside", "out_root": folder / f"outside{name}", "out_mp4": folder / f"videos{name}"}
    recipe.convert(**places, **{"progress_bar": 0, "size_limit": 600, "workers": 1, **flags})
