"""A raw log in, a prepared click log out: streaming passes over the source, in memory bounded by the vocabularies.

    scan    how many samples and which times there are (only if the end of the log is held out)
    count   how often each value occurs in the train split
    write   ids, transformed numbers, labels, split by split

Vocabularies and statistics see the train split only: an id that first occurs in the valid split is unknown there, as
it would be when serving. The target appears whole at the end or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from foresee.arrays import Int64
from foresee.data.cells import merged_type, raw_type_of
from foresee.data.click_log import ClickLog
from foresee.data.columns import Categorical
from foresee.data.convert import Chunk, NegativeLabel, convert
from foresee.data.order import SPLIT_NAMES, Codes, TimeHistogram, split_at_random, split_by_order, split_by_time
from foresee.data.samples import Ids, Samples, fill_empty, select
from foresee.data.schema import Feature, LogLabel, RawType, Table
from foresee.data.source import BAD_LINES_FILE, BadLines, PrepareOptions, ReportProgress, Source, SplitMode, check_files
from foresee.data.vocabulary import Counter, DenseStatistics, Encoder, GivenIds, HashVocabulary, transform
from foresee.data.writer import DESCRIPTION_FILE, LogWriter
from foresee.errors import DataError
from foresee.io.folders import check_target, new_folder
from foresee.io.storage import changed_words
from foresee.io.urls import Place, mark_of, name_of, shown


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareReport:
    """What came out."""

    log: ClickLog
    num_bad: int
    num_skipped: int
    """Samples left out on request (label_skip)."""
    bad_lines_file: Path | None
    num_negative: dict[str, int]
    """Per column with log1p: numbers below 0, which counted as 0. Columns without any are left out."""
    single_valued: dict[str, str | None]
    """The separator of each pooled column in which no cell has several values: most likely the wrong one."""


def prepare(
    source: Source, out: str | Path, options: PrepareOptions | None = None, progress: ReportProgress | None = None
) -> PrepareReport:
    """Write the prepared log of `source` to the folder `out`."""
    options = options or PrepareOptions()
    target = Path(out)
    check_target(target, replace=options.replace, marker=DESCRIPTION_FILE)
    check_files(source.files)
    passes = _Passes(source, options, progress)
    splitter = passes.scan()
    statistics, encoders = passes.count(splitter)
    with new_folder(target, replace=options.replace, marker=DESCRIPTION_FILE) as folder:
        num_bad, num_skipped = passes.write(splitter, statistics, encoders, folder)
    bad_lines_file = target / BAD_LINES_FILE if num_bad else None
    log = ClickLog.open(target)
    return PrepareReport(
        log=log,
        num_bad=num_bad,
        num_skipped=num_skipped,
        bad_lines_file=bad_lines_file,
        num_negative=passes.num_negative,
        single_valued=passes.single_valued,
    )


@dataclass(frozen=True, slots=True)
class Splitter:
    """Says which split the samples of a chunk belong to."""

    mode: SplitMode
    options: PrepareOptions
    num_samples: int = 0
    bounds: tuple[float, float] = (np.inf, np.inf)

    def codes(self, chunk: Chunk, first_sample: int) -> Codes:
        shares = self.options.shares
        if self.mode != "files" and shares.valid + shares.test == 0:
            return np.zeros(chunk.num_samples, np.int8)
        if self.mode == "order":
            return split_by_order(first_sample, chunk.num_samples, self.num_samples, shares)
        if self.mode == "random":
            return split_at_random(first_sample, chunk.num_samples, shares, self.options.seed)
        if self.mode == "files":
            code = 1 * (chunk.file in self.options.valid_files) + 2 * (chunk.file in self.options.test_files)
            return np.full(chunk.num_samples, code, np.int8)
        assert chunk.times is not None
        return split_by_time(chunk.times, self.bounds)


class _Passes:
    """The passes over one source. Each reads everything again; none keeps samples."""

    def __init__(self, source: Source, options: PrepareOptions, progress: ReportProgress | None) -> None:
        self._source, self._options, self._progress = source, options, progress
        self._columns = source.columns
        self._mode = _split_mode(source, options)
        self._checked, self._seen = False, dict[Place, list[int]]()
        self.num_negative: dict[str, int] = {}
        """Numbers below 0 that log1p took for 0, by column."""
        self.single_valued = {it.name: it.separator for it in self._columns.categorical if it.multi_valued}
        """The separators of pooled columns of which no cell so far has several values."""

    def scan(self) -> Splitter:
        """Find where the held-out end of the log begins."""
        options = self._options
        if self._mode in ("random", "files") or options.valid_share + options.test_share == 0:
            return Splitter(self._mode, options)
        histogram, num_samples = TimeHistogram(), 0
        for chunk in self._chunks("scan"):
            num_samples += chunk.num_samples
            if self._mode == "time" and chunk.times is not None:
                histogram.add(chunk.times)
        bounds = histogram.bounds(options.shares) if self._mode == "time" else (np.inf, np.inf)
        return Splitter(self._mode, options, num_samples, bounds)

    def count(self, splitter: Splitter) -> tuple[tuple[DenseStatistics, ...], dict[str, Encoder]]:
        """Vocabularies and statistics of the train split."""
        statistics = tuple(DenseStatistics(column) for column in self._columns.dense)
        encoders, counters, smallest = self._encoders()
        if not counters and not any(column.transform == "standard" for column in self._columns.dense):
            return statistics, encoders
        first = 0
        for chunk in self._chunks("count"):
            train = splitter.codes(chunk, first) == 0
            first += chunk.num_samples
            for entry, values in zip(statistics, chunk.dense, strict=True):
                entry.add(values[train])
            for column, cells in zip(self._columns.categorical, chunk.categories, strict=True):
                if column.table_name in counters:
                    kept = cells.filter(pa.array(train))
                    counters[column.table_name].add(kept.flatten() if column.multi_valued else kept)
        return statistics, encoders | {name: it.vocabulary(smallest[name]) for name, it in counters.items()}

    def _encoders(self) -> tuple[dict[str, Encoder], dict[str, Counter], dict[str, int]]:
        encoders: dict[str, Encoder] = {}
        counters: dict[str, Counter] = {}
        smallest: dict[str, int] = {}
        for column in self._columns.categorical:
            name, buckets = column.table_name, column.hash_buckets or self._options.hash_buckets
            if column.num_rows is not None:
                encoders[name] = GivenIds(column.num_rows)
            elif buckets is not None and column.min_count is None:
                encoders[name] = HashVocabulary(buckets)
            else:
                counters[name] = counters.get(name) or Counter()
                smallest[name] = column.min_count or self._options.min_count
        return encoders, counters, smallest

    def write(
        self,
        splitter: Splitter,
        statistics: tuple[DenseStatistics, ...],
        encoders: dict[str, Encoder],
        folder: Path,
    ) -> tuple[int, int]:
        """Write everything into `folder`; gives the numbers of bad and of skipped lines."""
        names = tuple(dict.fromkeys(column.table_name for column in self._columns.categorical))
        tables = tuple(Table(name, encoders[name].num_rows) for name in names)
        features = tuple(_feature(column, encoders) for column in self._columns.categorical)
        raw_types: list[RawType | None] = [None] * len(features)
        dense = tuple(entry.feature() for entry in statistics)
        bad = BadLines(self._options.bad_lines, folder / BAD_LINES_FILE)
        first = num_skipped = 0
        sizes = np.zeros(3, np.int64)
        labels = tuple(
            LogLabel(name=it.name, kind=it.kind, classes=it.classes, optional=it.optional)
            for it in self._columns.targets
        )
        weighted = self._columns.weight is not None
        with LogWriter(folder, features, dense, labels=labels, with_weights=weighted) as writer:
            for chunk in self._chunks("write", bad):
                codes = splitter.codes(chunk, first)
                first += chunk.num_samples
                num_skipped += chunk.num_skipped
                raw_types = list(map(_seen, raw_types, chunk.cell_types, chunk.categories))
                samples = self._samples(chunk, statistics, encoders)
                for code in np.unique(codes):
                    writer.append(SPLIT_NAMES[code], select(samples, codes == code))
                sizes += np.bincount(codes, minlength=3)
            self._check_sizes(sizes, num_skipped)
            vocabularies = {name: encoders[name].save(folder, index) for index, name in enumerate(names)}
            source = self._description(bad, num_skipped)
            writer.finish(tables=tables, vocabularies=vocabularies, source=source, raw_types=raw_types)
        return bad.count, num_skipped

    def _samples(self, chunk: Chunk, statistics: tuple[DenseStatistics, ...], encoders: dict[str, Encoder]) -> Samples:
        dense = tuple(transform(values, entry.feature()) for values, entry in zip(chunk.dense, statistics, strict=True))
        for entry, values in zip(self._columns.dense, chunk.dense, strict=True):
            if entry.transform == "log1p" and (values < 0).any():
                self.num_negative[entry.name] = self.num_negative.get(entry.name, 0) + int((values < 0).sum())
        ids = []
        for column, cells in zip(self._columns.categorical, chunk.categories, strict=True):
            encoder = encoders[column.table_name]
            if not column.multi_valued:
                ids.append(Ids(encoder.ids(cells)))
                continue
            offsets = cells.offsets.to_numpy() - cells.offsets[0].as_py()
            if column.name in self.single_valued and np.diff(offsets).max(initial=0) > 1:
                del self.single_valued[column.name]
            bags = Ids(encoder.ids(cells.flatten()), offsets)
            # Where there is an unknown row, a sample without any value points to it; given ids have none.
            ids.append(bags if column.num_rows is not None else fill_empty(bags, 0))
        return Samples(chunk.labels, dense, tuple(ids), weights=chunk.weights)

    def _chunks(self, stage: str, bad: BadLines | None = None) -> Iterator[Chunk]:
        """One pass; the first one also decides whether too many lines are bad."""
        bad = bad or BadLines(self._options.bad_lines)
        sizes = {file: mark[0] for file, mark in self._marks().items()}
        num_good, negatives = 0, dict[str, NegativeLabel]()
        try:
            for raw in self._source.chunks(bad):
                chunk = convert(raw, self._columns, bad, negatives)
                num_good += chunk.num_samples + chunk.num_skipped
                yield chunk
                if self._progress is not None:
                    before = self._source.files[: self._source.files.index(raw.file)]
                    self._progress(stage, sum(sizes[file] for file in before) + raw.bytes_done, sum(sizes.values()))
        finally:
            bad.close()
        self._marks()
        if not self._checked:
            bad.check_share(num_good, self._options.bad_share_max)
            self._checked = True

    def _marks(self) -> dict[Place, list[int]]:
        """Of the files as they are, if that is what they were when the first pass began."""
        marks = {file: mark_of(file) for file in self._source.files}
        for file, before in (self._seen or marks).items():
            if marks[file] != before:
                raise DataError(f"{changed_words(shown(file))}.")
        self._seen = marks
        return marks

    def _check_sizes(self, sizes: Int64, num_skipped: int) -> None:
        names = ", ".join(map(shown, self._source.files))
        if sizes.sum() == 0:
            raise DataError(f"{names}: no sample was found ({num_skipped} were left out on request); check the file.")
        wanted = (True, self._options.valid_share > 0, self._options.test_share > 0)
        if self._mode == "files":
            wanted = (True, bool(self._options.valid_files), bool(self._options.test_files))
        for name, size, expected in zip(SPLIT_NAMES, sizes, wanted, strict=True):
            if expected and size == 0:
                raise DataError(
                    f"{names}: the {name} split would be empty (of {sizes.sum()} samples, split by "
                    f"{self._mode}); choose other shares (--valid-share, --test-share) or another --split."
                )

    def _description(self, bad: BadLines, num_skipped: int) -> dict[str, object]:
        return {
            "format": self._source.name,
            "files": [name_of(file) for file in self._source.files],
            "split": self._mode,
            "label": self._columns.targets[0].column_name,
            "label_threshold": self._columns.targets[0].threshold,
            **({"labels": [asdict(it) for it in self._columns.labels]} if self._columns.labels else {}),
            **({"weight": self._columns.weight} if self._columns.weight is not None else {}),
            "num_bad": bad.count,
            "num_skipped": num_skipped,
            "num_negative": self.num_negative,
        }


def _feature(column: Categorical, encoders: dict[str, Encoder]) -> Feature:
    return Feature(
        name=column.name,
        table=column.table_name,
        num_rows=encoders[column.table_name].num_rows,
        pooling=column.pooling,
        separator=column.separator,
        missing_markers=column.missing_markers,
    )


def _seen(before: RawType | None, cell_type: pa.DataType, values: pa.Array) -> RawType | None:
    return before if before == "text" else merged_type(before, raw_type_of(cell_type, values))


def _split_mode(source: Source, options: PrepareOptions) -> SplitMode:
    held_out = (*options.valid_files, *options.test_files)
    mode = options.split or ("files" if held_out else source.default_split)
    if mode == "time" and source.columns.time is None:
        raise DataError(
            f"{source.name}: a split by time needs a time column; name one with --time, or use --split order or "
            "--split random."
        )
    if (mode == "files") != bool(held_out):
        raise DataError(
            f"the split {mode!r} and the files named as valid or test do not fit; name such files (--valid-file, "
            "--test-file) with --split files and with no other."
        )
    for file in held_out:
        if file not in source.files:
            raise DataError(f"{shown(file)}: held out, but not one of the log's files; name it among them too.")
    return mode
