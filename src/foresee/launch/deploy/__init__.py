"""Scripts and manifests for engines that start a run's parts themselves: text out, nothing started."""
