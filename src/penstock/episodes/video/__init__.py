"""Open video files: what decodes them, and frames of them by number."""
