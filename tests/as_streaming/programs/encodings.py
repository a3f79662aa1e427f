"""An encoding of one's own, in place of one that there is."""

import penstock.as_streaming  # isort: skip

import json
import os
import sys

import numpy as np
from streaming import LocalDataset, MDSWriter, StreamingDataset
from streaming.base.format.mds.encodings import Encoding, _encodings


class Numbers(Encoding):
    def encode(self, obj):
        return np.array(obj, np.int16).tobytes()

    def decode(self, data):
        return np.frombuffer(data, np.int16).tolist()


_encodings["int16"] = Numbers

if __name__ == "__main__":
    folder = os.path.join(sys.argv[1], "data")
    with MDSWriter(out=folder, columns={"values": "int16", "name": "str"}, hashes=["sha1"], size_limit="1kb") as out:
        config = out.get_config()
        for number in range(40):
            out.write({"values": [number, -number], "name": f"number {number}"})
    with open(os.path.join(folder, "index.json")) as file:
        index = json.load(file)
    local = LocalDataset(folder)
    streamed = StreamingDataset(local=folder, batch_size=4)
    print(
        json.dumps(
            {
                "config": config,
                "sizes": [shard["column_sizes"] for shard in index["shards"]],
                "digests": [shard["raw_data"]["hashes"] for shard in index["shards"]],
                "samples": [local[number] for number in range(len(local))],
                "same": list(streamed) == list(local[:]),
                "basenames": [shard.raw_data.basename for shard in streamed.shards],
            }
        )
    )
