"""Videos in mp4 files: their tables, and cutting them into clips that are fetched and decoded by themselves."""
