"""The stages of a build, an update and a compaction, in their order."""
