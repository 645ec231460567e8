"""Tests of the view API."""
