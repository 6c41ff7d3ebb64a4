"""Plans as files: the only part of `plan` that reads or writes anything.

`columns` turns records into Arrow columns, `file` is one plan for one worker, `folder` the plans of several workers.
"""
