"""How the environment, options and files become settings of Oracle Cloud."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from penstock.errors import ConfigError
from penstock.storage.oci import resolve_oci

if TYPE_CHECKING:
    from pathlib import Path


NOWHERE = {"HOME": "/nowhere", "NO_GCE_CHECK": "true"}


def test_oracle(tmp_path: Path) -> None:
    keys = {"key": "k", "secret": "s"}
    pair = {"access_key_id": "k", "secret_access_key": "s"}
    (tmp_path / ".oci").mkdir()
    (tmp_path / ".oci" / "config").write_text("[DEFAULT]\nregion=eu-1\n[OTHER]\nregion=eu-2\n")
    home = {"HOME": str(tmp_path)}
    endpoint = "https://ns.compat.objectstorage.{}.oraclecloud.com".format
    assert resolve_oci("oci://b@ns/x", keys, home) == {**pair, "region": "eu-1", "endpoint": endpoint("eu-1")}
    other = {**home, "OCI_CONFIG_PROFILE": "OTHER", "OCI_NAMESPACE": "ns"}
    assert resolve_oci("oci://b/x", keys, other) == {**pair, "region": "eu-2", "endpoint": endpoint("eu-2")}
    environ = {**home, "OCI_REGION": "eu-3", "OCI_ACCESS_KEY_ID": "k", "OCI_SECRET_ACCESS_KEY": "s"}
    assert resolve_oci("oci://b@ns/x", {}, environ) == {**pair, "region": "eu-3", "endpoint": endpoint("eu-3")}
    assert resolve_oci("oci://b@ns/x", {}, home)["anonymous"]
    with pytest.raises(ConfigError, match="which region and namespace"):
        resolve_oci("oci://b/x", keys, NOWHERE)
    with pytest.raises(ConfigError, match="only one of the OCI access key"):
        resolve_oci("oci://b@ns/x", {"key": "k"}, home)
    with pytest.raises(ConfigError, match="there is no OCI config file"):
        resolve_oci("oci://b@ns/x", {"config": "/missing"}, home)
    with pytest.raises(ConfigError, match="cannot read profile 'GONE'"):
        resolve_oci("oci://b@ns/x", keys, {**home, "OCI_CONFIG_PROFILE": "GONE"})
