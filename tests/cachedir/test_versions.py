"""What tags and times of a store prove of an object, and which edition they make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.cachedir.versions import (
    edition_of,
    is_young,
    lasting_tag,
)
from penstock.storage.base import ObjectInfo

if TYPE_CHECKING:
    from collections.abc import Callable


NOW = 1_800_000_000 * 10**9


def info(tag: str | None = None, age_s: float = 100.0, num_bytes: int = 10) -> ObjectInfo:
    return ObjectInfo("a", num_bytes, tag, NOW - int(age_s * 10**9))


def test_times_in_whole_seconds_prove_nothing_of_young_files() -> None:
    assert is_young(info(age_s=0), NOW)
    assert is_young(info(age_s=1), NOW)
    assert is_young(info(age_s=-60), NOW)  # a clock that is ahead
    assert not is_young(info(age_s=2), NOW)
    assert not is_young(info(age_s=0.5), NOW)  # told more exactly than in seconds
    assert lasting_tag(info(age_s=1), NOW) is None
    assert lasting_tag(info('"6526fd1c-258"', age_s=1), NOW) is None  # nginx
    assert lasting_tag(info('W/"6526fd1c-258"', age_s=1), NOW) is None
    assert lasting_tag(info('"6526fd1c-258"'), NOW) == '"6526fd1c-258"'
    md5 = '"9e107d9d372bb6826bd81d3542a419d6"'
    assert lasting_tag(info(md5, age_s=1), NOW) == md5
    assert lasting_tag(info('"9e107d9d372bb6826bd81d3542a419d6-7"', age_s=0), NOW) is not None  # S3, in parts
    assert lasting_tag(ObjectInfo("a", 10), NOW) is None


def test_an_edition_is_place_and_bytes_and_version() -> None:
    make: Callable[..., str] = edition_of
    known = make("s3://a", "00", info('"t"'))
    assert known == make("s3://a", "00", info('"t"'))
    others = [
        make("s3://b", "00", info('"t"')),
        make("s3://a", "01", info('"t"')),
        make("s3://a", "00", info('"u"')),
        make("s3://a", "00", info('"t"', age_s=99)),
        make("s3://a", "00", None),
        make("s3://a", "00", info('"t"'), "salt"),
    ]
    assert len({known, *others}) == 7
