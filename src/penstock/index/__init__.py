"""What a dataset consists of: its shards, their files, sizes and digests."""
