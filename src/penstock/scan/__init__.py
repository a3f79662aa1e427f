"""From what a user calls his data to an index of its files: names, listing, detection, and a scan of each file."""
