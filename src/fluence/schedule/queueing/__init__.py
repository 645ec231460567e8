"""Work that is suspended until it can start: placeholders for its pods, and its release."""
