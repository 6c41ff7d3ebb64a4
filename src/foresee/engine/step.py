"""One step as the training loop sees it: its samples, its rows, and the update that ends it.

Rows are needed when they are used: reading `embeddings`, or calling `await_embeddings`, waits until all of them have
arrived, those that other workers send last of all. A model that can compute something without them, such as DLRM's
bottom layers, takes the function instead of the tensor and calls it when it needs the rows.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakMethod

import numpy as np
import torch
from torch import Tensor

from foresee.engine.lookup import FeatureEmbeddings, GroupVectors, in_feature_order
from foresee.engine.pipeline import ReadyStep
from foresee.errors import UsageError

if TYPE_CHECKING:
    from foresee.engine.run import Run


class Step:
    """One training step: a batch, its embeddings, and the update of its rows.

    Yielded by a `Run`, which owns its state; not constructed by users. Call `update` once, before the next step.

    Attributes:
        index: Its number, from 0 on over all epochs and restarts.
        dense: [samples, dense features], on the run's device.
        labels: [samples], on the run's device; [samples, labels] of a log with several.
        sample_weights: [samples], on the run's device; None if all count the same.
        batch_size: Samples of the step, those of all workers together.
        samples: Which samples of the batch these are: all of them, or this worker's.
        item: What a user's source of batches gave for this step, the whole batch; None for a log.
        vectors: Which lookups each vector of the embeddings is made of, where tables have one width.
        weights: [lookups] of batches whose ids have weights; else None.
        updated: Whether `update()` was called.
    """

    def __init__(self, run: Run, ready: ReadyStep) -> None:
        work, device = ready.work, run.device
        batch = work.batch
        self.index = batch.step
        self.dense = torch.from_numpy(batch.dense).to(device, non_blocking=True)
        self.labels = torch.from_numpy(batch.labels).to(device, non_blocking=True)
        weights = batch.sample_weights
        self.sample_weights = None if weights is None else torch.from_numpy(weights).to(device, non_blocking=True)
        self.batch_size, self.samples = work.batch_size, work.record.samples
        self.item: Any = getattr(batch, "item", None)
        self.vectors, self.weights = work.vectors, getattr(batch, "weights", None)
        self.updated = False
        self._run, self._work = run, work
        self._ready: ReadyStep | None = ready  # until its rows are in their slots
        self._leaves: tuple[Tensor, ...] | None = None
        self._embeddings: Tensor | FeatureEmbeddings | None = None
        self._during_backward = False
        self._updating: Future[None] | None = None  # one that began during backward

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """The embeddings of each row group, [samples, its features, width], which collect the gradient.

        Of tables of one width there is one, `embeddings` itself.
        """
        if self._leaves is None:
            assert self._ready is not None
            self._leaves = self._run._gather(self._ready)
            self._ready = None  # frees the staging memory: a step that the caller keeps must not hold fetched rows
            if self._during_backward:
                self._begin_with_gradients(self._leaves)
        return self._leaves

    @property
    def embeddings(self) -> Tensor:
        """[samples, features, width], a leaf that collects the gradient. Stays as it is, also after the update.

        Where tables have several widths: a list with a tensor for each feature, [samples, width of its table].
        Where features have a vector for each id, [vectors, width]: `EmbeddingBags.keyed(step)` takes them apart.
        Rows that are only read need no gradient and collect none.
        """
        if self._embeddings is None:
            self._embeddings = in_feature_order(self.groups) if self._work.parts else self.leaves[0]
        return cast("Tensor", self._embeddings)  # or the list, where tables have several widths

    @property
    def groups(self) -> list[GroupVectors]:
        """The embeddings of each row group with the features that they belong to."""
        batch, every = self._work.batch, slice(None)
        return [
            GroupVectors(
                leaf, part.vectors, np.arange(batch.num_features) if part.features is None else part.features,
                every if part.features is None else batch.of_features(part.features)[1],
            )
            for leaf, part in zip(self.leaves, self._work.groups, strict=True)
        ]  # fmt: skip

    def await_embeddings(self) -> Tensor:
        """Return `embeddings`; for models that take a function."""
        return self.embeddings

    @property
    def began(self) -> bool:
        """The update has begun, or is done."""
        return self.updated or self._updating is not None

    def span(self, what: str) -> None:
        """Name what was done since the last span, in the timeline of a recorded run.

        Args:
            what: Such as "forward" or "backward".
        """
        self._run.tracer.mark(what, self.index)

    def lap(self, what: str) -> None:
        """Call `span`: its name in the release before, removed in the next."""
        warnings.warn("step.lap is now called step.span; rename it", DeprecationWarning, stacklevel=2)
        self.span(what)

    def learned(self, loss: float) -> None:
        """Record the loss for the curve of a recorded run. Call it before the update.

        Args:
            loss: The loss of this step.
        """
        self._run.tracer.learned(loss)

    def update(self) -> None:
        """Apply the gradient of `embeddings` to the step's rows. Call it once, after backward.

        It only ends the step if rows are only read.
        """
        if self.updated:
            raise UsageError(f"step {self.index} was updated already; call step.update() once for each step")
        if self._updating is None:
            self._run._update(self._work, self._gradients())
        else:
            self._run._end_update(self._updating, self.index)
        self.updated = True

    def clip_grad_norm(self, parameters: Iterable[Tensor], max_norm: float) -> float:
        """Scale the gradients of weights and rows so that their norm together is at most `max_norm`.

        The norm is that of the whole step: a row's gradient counts once, summed over all samples (and workers) that use
        it, as the gradient of an `nn.EmbeddingBag` does. Call it after backward and before any update. With several
        workers all call it, with gradients of weights that are averaged already; sums of rows that several workers use
        then travel once more.

        Args:
            parameters: Of the model; those without a gradient are left out.
            max_norm: What the norm may be at most.

        Returns:
            The norm before.
        """
        if self.began:
            raise UsageError(
                f"step {self.index}: its update has begun, so clipping comes too late; clip before step.update(), and "
                "leave update_during_backward() out"
            )
        given = [it.grad for it in parameters if it.grad is not None]
        squares = sum((float(grad.double().square().sum()) for grad in given), 0.0)
        # Also where this worker's samples use no rows: all workers take part in the exchange.
        squares += self._run._squared_norm(self._work, self._gradients())
        given += [leaf.grad for leaf in self.leaves if leaf.grad is not None]
        norm = math.sqrt(squares)
        # As torch.nn.utils.clip_grad_norm_ has it.
        if (share := max_norm / (norm + 1e-6)) < 1:
            for grad in given:
                grad.mul_(share)
        return norm

    def _gradients(self) -> list[Tensor]:
        # Gathered even if no gradient is needed: later steps expect these rows in their slots.
        leaves = self.leaves if self._leaves is not None or not self._work.record.learns else ()
        groups = list(zip(leaves, self._work.groups, strict=False))
        if not groups or any(leaf.grad is None and part.record.learns for leaf, part in groups):
            raise UsageError(f"step {self.index}: its embeddings have no gradient; call loss.backward() first")
        return [leaf if leaf.grad is None else leaf.grad for leaf in leaves]

    def update_during_backward(self) -> None:
        """Let the update begin once backward has the gradient of `embeddings`, beside the rest of backward.

        Call it before backward, if that is called once and nobody changes the gradient afterwards. The step still ends
        with `update()`, and the result is the same.
        """
        if not self._during_backward and self._leaves is not None:
            self._begin_with_gradients(self._leaves)
        self._during_backward = True

    def _begin_with_gradients(self, leaves: tuple[Tensor, ...]) -> None:
        learning = [leaf for leaf in leaves if leaf.requires_grad]
        self._num_awaited = len(learning)
        # Weak: step, embeddings and hook are a cycle, and the garbage collector does not see through a tensor's hooks.
        arrived = WeakMethod(self._gradient_arrived)

        def begin(embeddings: Tensor) -> None:
            if (method := arrived()) is not None:
                method()

        for leaf in learning:
            leaf.register_post_accumulate_grad_hook(begin)  # type: ignore[no-untyped-call]

    def _gradient_arrived(self) -> None:
        """Of one row group; with the last of them the update begins."""
        if self._updating is not None:
            raise UsageError(
                f"step {self.index}: its update began with the first backward(), a second one comes too late; call "
                "backward() once, or leave update_during_backward() out"
            )
        self._num_awaited -= 1
        if not self._num_awaited:
            self._updating = self._run._begin_update(self._work, self._gradients())
