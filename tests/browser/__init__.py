"""Tests in a real browser: a package, so that the fixtures of its scope end with its last test."""
