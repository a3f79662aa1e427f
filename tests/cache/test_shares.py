"""How much each of several that keep shards open may keep."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.cache.shares import share_of_each
from penstock.wire.quota import OpenShardQuota


@given(
    st.dictionaries(
        st.sampled_from("abc"), st.builds(OpenShardQuota, st.none() | st.integers(0, 10_000), st.booleans())
    ),
    st.integers(1, 5),
)
def test_several_keepers_heed_all_shares_together(shares: dict[str, OpenShardQuota], num_keepers: int) -> None:
    each = share_of_each(shares, num_keepers)
    for share in shares.values():
        assert each.is_tight or not share.is_tight
        assert share.num_bytes is None or (each.num_bytes or 0) * num_keepers <= share.num_bytes
    assert (each.num_bytes is None) == all(share.num_bytes is None for share in shares.values())
