"""A loop without autograd, as an experienced PyTorch user writes it: products by torch, gradients by hand.

Rows are gathered once per step and learn by Adagrad from gradients that are summed by row. Products are in-place
`torch.mm` of a chunk's edges with its negatives; with `torch.bmm` over all chunks the loop is slower.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from graph_rivals.work import LEARNING_RATE, Edges, Work

EPSILON = 1e-10


class Side:
    def __init__(self, graph: Path, edges: Edges, work: Work) -> None:
        self._edges, self._work, self._rng = edges, work, np.random.default_rng(0)
        self._nodes = torch.nn.init.xavier_uniform_(torch.empty(edges.num_nodes, work.dim))
        self._relations = torch.ones(2, edges.num_relations, work.dim)
        self._squares = torch.zeros_like(self._nodes), torch.zeros_like(self._relations)
        self._scores = torch.empty(work.batch_size, work.num_negatives)

    @torch.no_grad()
    def train(self, num_steps: int) -> float:
        total, work = 0.0, self._work
        for batch in self._edges.batches(num_steps, work, self._rng):
            heads, relations, tails = batch.unbind(1)
            num, wrong = len(batch), work.num_chunks * work.num_negatives
            ids = torch.cat([heads, tails, torch.randint(self._edges.num_nodes, (2 * wrong,))])
            rows = self._nodes[ids]
            gradient = torch.zeros_like(rows)
            parts, learned = (torch.split(it, [num, num, wrong, wrong]) for it in (rows, gradient))
            total += self._side(0, relations, (parts[0], parts[1], parts[2]), (learned[0], learned[1], learned[2]))
            total += self._side(1, relations, (parts[1], parts[0], parts[3]), (learned[1], learned[0], learned[3]))
            unique, inverse = torch.unique(ids, return_inverse=True)
            sums = torch.zeros(len(unique), work.dim).index_add_(0, inverse, gradient)
            squares = self._squares[0][unique].addcmul_(sums, sums)
            self._squares[0][unique] = squares
            self._nodes.index_add_(0, unique, sums.div_(squares.sqrt_().add_(EPSILON)), alpha=-LEARNING_RATE)
        return total / num_steps / work.batch_size / 2

    def _side(self, side: int, relations: Tensor, rows: tuple[Tensor, ...], learned: tuple[Tensor, ...]) -> float:
        """The loss; adds to the gradients of the known, the wanted and the wrong ends."""
        known, wanted, wrong = rows
        weights = self._relations[side][relations]
        query = known * weights
        positive, scores = (query * wanted).sum(1, keepdim=True), self._scores
        chunks = list(zip(query.chunk(self._work.num_chunks), wrong.chunk(self._work.num_chunks), strict=True))
        for out, (queries, others) in zip(scores.chunk(len(chunks)), chunks, strict=True):
            torch.mm(queries, others.t(), out=out)
        highest = torch.maximum(scores.amax(1, keepdim=True), positive)
        own = (positive - highest).exp_()
        total = scores.sub_(highest).exp_().sum(1, keepdim=True).add_(own)
        loss = float((total.log() + highest - positive).sum())
        scores.div_(total)
        share = own.div_(total).sub_(1)
        of_query = share * wanted
        parts = zip(scores.chunk(len(chunks)), of_query.chunk(len(chunks)), learned[2].chunk(len(chunks)), strict=True)
        for (found, of_queries, of_others), (queries, others) in zip(parts, chunks, strict=True):
            of_queries.addmm_(found, others)
            torch.mm(found.t(), queries, out=of_others)
        learned[0].addcmul_(of_query, weights)
        learned[1].addcmul_(share, query)
        of_relations = torch.zeros_like(self._relations[side]).index_add_(0, relations, of_query.mul_(known))
        squares = self._squares[1][side].addcmul_(of_relations, of_relations)
        self._relations[side].addcdiv_(of_relations, squares.sqrt().add_(EPSILON), value=-LEARNING_RATE)
        return loss
