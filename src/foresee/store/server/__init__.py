"""An embedding server: one shard of the rows behind Arrow Flight."""

from foresee.store.rpc.limits import Limits
from foresee.store.server.service import EmbeddingServer
from foresee.store.server.shard import Share, disk_shard, memory_shard

__all__ = ["EmbeddingServer", "Limits", "Share", "disk_shard", "memory_shard"]
