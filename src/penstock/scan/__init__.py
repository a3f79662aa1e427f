"""From what users call their data to an index of its files: names, listing, detection, and a scan of each file."""
