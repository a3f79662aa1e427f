"""The node's cache: directories of local shards, and the one process that fills them."""
