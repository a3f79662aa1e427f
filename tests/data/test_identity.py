"""Which data a run reads: what a state carries of it, and what is worth a warning."""

from __future__ import annotations

import warnings

import pytest

from penstock import Stream
from penstock.data.identity import DataIdentity, adopt_revisions, warn_of_other_code

NAMES = {"web": "abc"}


def test_a_state_carries_what_there_is_to_say() -> None:
    assert DataIdentity(("data",)).state() == {}
    known = DataIdentity(("data",), {"web": "v1"}, {}, {"web": [["clean", "d1"]]})
    assert known.state() == {"versions": {"web": "v1"}, "code": {"web": [["clean", "d1"]]}}


def test_files_of_the_same_names_with_other_versions_are_warned_of() -> None:
    known = DataIdentity(versions={"web": "v2"})
    with pytest.warns(UserWarning, match="'web' are not the versions"):
        known.compare({"versions": {"web": "v1"}, "streams": {"web": "abc"}}, NAMES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        known.compare({"versions": {"web": "v2"}}, NAMES)
        known.compare({"versions": {"web": "v1"}, "streams": {"web": "other data"}}, NAMES)
        known.compare({"versions": "damaged"}, NAMES)


def test_functions_that_changed_are_named() -> None:
    with pytest.warns(UserWarning, match="the code of clean, or what it refers to"):
        warn_of_other_code([["clean", "d1"], ["split", "d2"]], [["clean", "d3"], ["split", "d2"]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_other_code(None, [["clean", "d3"]])


def test_a_repository_is_read_at_the_commit_of_the_state() -> None:
    old, new = "a" * 40, "b" * 40
    known = DataIdentity(revisions={"0": new})
    stream = Stream(remote="hf://datasets/org/data")
    assert not adopt_revisions([stream], known, {"revisions": {"0": new}})
    assert adopt_revisions([stream], known, {"revisions": {"0": old}})
    assert stream.remote is not None
    assert old in stream.remote
