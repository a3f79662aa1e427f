"""Sources of samples in named shards, and what is done to samples on their way: transforms, mixing, packing."""
