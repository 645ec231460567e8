"""The real controllers of JobSet, LeaderWorkerSet and Ray, for tests."""
