"""Let Prometheus ask for the counts of a loader, at any time: nothing has to be called in the training loop.

pip install prometheus-client
python examples/log_prometheus.py /tmp/line --workers 2 --port 9177, and meanwhile curl 127.0.0.1:9177
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import start_http_server
from prometheus_client.core import REGISTRY, GaugeMetricFamily
from prometheus_client.registry import Collector

import tiny
from penstock import StreamingDataLoader, StreamingDataset

if TYPE_CHECKING:
    from collections.abc import Iterator


class LoaderCollector(Collector):
    """Gives the counts of a loader as they are when Prometheus asks."""

    def __init__(self, loader: StreamingDataLoader) -> None:
        self._loader = loader

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, number in self._loader.stats(flat=True).items():
            yield GaugeMetricFamily("penstock_" + name.replace(".", "_"), f"stats().{name}", value=number)


def main() -> None:
    parser = tiny.parser()
    parser.add_argument("--port", type=int, default=9177)
    args = parser.parse_args()
    tiny.write_line(args.data)
    loader = StreamingDataLoader(
        StreamingDataset(local=args.data, shuffle=True), batch_size=5, num_workers=args.workers
    )
    REGISTRY.register(LoaderCollector(loader))
    start_http_server(args.port, addr="127.0.0.1")
    for step in tiny.fit(loader, args.epochs):
        print(f"step {step}", flush=True)


if __name__ == "__main__":
    main()
