"""Local bytes ↔ samples: how to open, read and build one shard of each format."""
