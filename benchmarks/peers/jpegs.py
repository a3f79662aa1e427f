"""JPEG images, and the least that decoding them costs: libjpeg-turbo over bytes in memory."""

from __future__ import annotations

import io

import numpy as np
import simplejpeg
from benchmarks.peers.common import SIZE_LIMIT, Result, main, timed
from benchmarks.peers.streaming import timed_samples
from PIL import Image

WIDTH, HEIGHT = 500, 375


def make_jpegs(count: int) -> list[bytes]:
    """Pictures of about 60 kB, soft shapes with some grain, as large as those of ImageNet are on average."""
    rng = np.random.default_rng(3)
    return [make_jpeg(rng) for _ in range(count)]


def make_jpeg(rng: np.random.Generator) -> bytes:
    shapes = Image.fromarray(rng.integers(0, 256, (24, 32, 3), dtype=np.uint8))
    picture = np.asarray(shapes.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)).astype(np.int16)
    picture = (picture + rng.integers(-8, 9, picture.shape)).clip(0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(picture).save(out, "JPEG", quality=85)
    return out.getvalue()


def write(directory: str, count: int) -> Result:
    from penstock import MDSWriter

    def work() -> int:
        with MDSWriter(out=directory, columns={"image": "jpeg", "label": "int"}, size_limit=SIZE_LIMIT) as writer:
            for number, jpeg in enumerate(make_jpegs(count)):
                writer.write({"image": jpeg, "label": number})
        return count

    return timed(work)


def decode(count: int, seconds: float) -> Result:
    jpegs = make_jpegs(count)
    return timed_samples(lambda: (simplejpeg.decode_jpeg(jpeg, "RGB") for jpeg in jpegs), seconds, chunk=min(64, count))


if __name__ == "__main__":
    main({"write": write, "decode": decode})
