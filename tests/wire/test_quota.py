"""A quota is told when it changes, and once."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from penstock.wire.encoding import load, plain
from penstock.wire.quota import OpenShardQuota, is_news


@given(st.builds(OpenShardQuota, st.none() | st.integers(0, 10_000), st.booleans()))
def test_a_share_is_news_once(share: OpenShardQuota) -> None:
    assert is_news(None, share)
    assert not is_news(share, share)
    assert is_news(share, OpenShardQuota(share.num_bytes, not share.is_tight))
    assert is_news(share, OpenShardQuota(1 if share.num_bytes is None else None, share.is_tight))
    assert load(OpenShardQuota, json.loads(json.dumps(share, default=plain))) == share
