"""Sources of files, read in order where they are."""
