"""Lets code written for MosaicML Streaming run on penstock: `import penstock.as_streaming` once, before all else.

From then on `streaming`, `streaming.base.util` and the other modules of that library are penstock's, in this process.
"""

from __future__ import annotations

from penstock.as_streaming.modules import stand_in

stand_in()
