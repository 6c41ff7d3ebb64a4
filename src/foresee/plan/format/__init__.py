"""Plans as files: the only part of `plan` that reads or writes anything."""
