"""From ids to samples: sources of shards, open shards, and one worker's way through a pass."""
