"""External resources, and gates of pods that wait for a producer."""
