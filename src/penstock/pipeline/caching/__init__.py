"""The cache stage: what sources give, written once as MDS shards under a fingerprint, and read from there."""
