"""What several rooms need and nobody owns: array types, prefetching, durable files, bounded JSON, failpoints."""
