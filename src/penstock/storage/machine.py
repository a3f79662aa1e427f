"""Which cloud this machine is one of, as its firmware says: no network is asked."""

from __future__ import annotations

from pathlib import Path

_FIRMWARE = Path("/sys/class/dmi/id")


def firmware_says(word: str) -> bool:
    """Say whether the maker or the product name of this machine contains a word."""
    for name in ("sys_vendor", "product_name", "board_vendor"):
        try:
            if word in (_FIRMWARE / name).read_text():
                return True
        except OSError:
            continue  # not every system tells
    return False
