"""Files that describe jobs, one reader per format. All return jobs, or raise with file:line and what was expected."""
