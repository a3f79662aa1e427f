"""What a frame must hold, and pictures in any form, with plain values."""

from __future__ import annotations

import numpy as np
import pytest

from penstock.episodes.writing.schema import as_pixels, check_frame, declare_features, infer_features
from penstock.errors import ColumnRangeError, ColumnValueError, ConfigError, ExtraColumnError, MissingColumnError


def test_features_are_inferred_and_values_stored_in_their_types() -> None:
    features = infer_features(
        {"a": np.zeros(2, np.float32), "n": 3, "s": "x", "p": np.zeros((4, 6, 3), np.uint8)}, "video"
    )
    assert {key: (each.dtype, each.shape) for key, each in features.items()} == {
        "a": ("float32", (2,)),
        "n": ("int64", (1,)),
        "s": ("string", (1,)),
        "p": ("video", (4, 6, 3)),
    }
    values = check_frame({"a": [1, 2], "n": np.uint8(4), "s": "y", "p": np.ones((3, 4, 6), np.uint8)}, features)
    assert values["a"].dtype == np.float32
    assert (int(values["n"]), values["s"], values["p"].pixels.shape) == (4, "y", (4, 6, 3))


def test_frames_that_do_not_fit_are_refused() -> None:
    features = declare_features({"n": {"dtype": "int8", "shape": [1]}})
    with pytest.raises(MissingColumnError, match="'n' is missing"):
        check_frame({}, features)
    with pytest.raises(ExtraColumnError, match="'m', which is not among the features"):
        check_frame({"n": 1, "m": 1}, features)
    with pytest.raises(ColumnRangeError, match="'n' is a int8"):
        check_frame({"n": 300}, features)
    with pytest.raises(ConfigError, match="added by the writer"):
        declare_features({"index": {"dtype": "int64", "shape": [1]}})


def test_floats_from_0_to_1_become_bytes() -> None:
    assert as_pixels(np.full((2, 2), 0.5), None, "p").tolist() == [[[128]] * 2] * 2
    with pytest.raises(ColumnValueError, match="not all from 0 to 1"):
        as_pixels(np.full((2, 2), 1.5), None, "p")
