"""Results of your own by key, in memory and on disk: `MemoryCache`, `DiskCache`, `TreeCacheManager`, `DatasetCache`."""
