"""Values ↔ bytes of one MDS column, a whole batch at a time."""
