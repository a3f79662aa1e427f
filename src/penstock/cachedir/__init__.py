"""A cache directory: the names in it, its locks, its ledger and its editions. The directory is the database."""
