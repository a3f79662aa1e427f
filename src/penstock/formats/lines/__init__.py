"""Files of lines that other programs wrote: JSON lines, CSV, TSV and plain text."""
