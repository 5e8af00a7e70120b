"""Which rows make up a batch. A sampler is a pure function of the rows' lengths and a random generator."""

import numpy as np

from beem_plugin.common.errors import ConfigurationError, check_number
from beem_plugin.common.registry import Registrable

Batches = list[list[int]]


class BatchSampler(Registrable):
    """
    # Parameters

    batch_size : `int | None`
        Rows a batch; `None` if it varies.
    shuffle : `bool`, optional (default = `True`)
        Only ever while training: evaluation goes through the rows in one fixed order.
    drop_last : `bool`, optional (default = `False`)
        Leave out the batch that is not full. Only while training: evaluation never leaves out a row.
    """

    default_implementation = "bucket"

    def __init__(self, batch_size: int | None, shuffle: bool = True, drop_last: bool = False) -> None:
        if batch_size is not None and not 1 <= batch_size < 1 << 31:
            raise ConfigurationError(f"batch_size: found {str(batch_size)[:40]}, allowed: 1 or more, below 2^31")
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last

    def batches(self, lengths: np.ndarray, random: np.random.Generator | None, drop_last: bool) -> Batches:
        """Row numbers in batches; one that is not full is last, as accelerate requires; `random`: shuffled."""
        raise NotImplementedError(f"{type(self).__name__} does not define batches")


@BatchSampler.register("simple")
class SimpleBatchSampler(BatchSampler):
    """
    Consecutive rows, shuffled or in the order of the data.

    Registered as a `BatchSampler` with name "simple".

    # Parameters

    batch_size, shuffle, drop_last
        See `BatchSampler`.
    rows_together : `int`, optional (default = `1`)
        So many neighbouring rows of the data stay together when rows are shuffled. 5 where an image has five captions:
        it is then opened and encoded once for all of them.
    """

    def __init__(self, batch_size: int, shuffle: bool = True, drop_last: bool = False, rows_together: int = 1) -> None:
        super().__init__(batch_size, shuffle, drop_last)
        check_number("batch_sampler.rows_together", rows_together, 1, batch_size)
        self.batch_size: int = batch_size
        self.rows_together = rows_together

    def batches(self, lengths: np.ndarray, random: np.random.Generator | None, drop_last: bool) -> Batches:
        order = np.arange(len(lengths))
        if random is not None:
            groups = random.permutation(-(-len(lengths) // self.rows_together))
            rows = (groups[:, None] * self.rows_together + np.arange(self.rows_together)).ravel()
            order = rows[rows < len(lengths)]
        batches = [order[i : i + self.batch_size].tolist() for i in range(0, len(order), self.batch_size)]
        return batches[:-1] if drop_last and batches and len(batches[-1]) < self.batch_size else batches


@BatchSampler.register("bucket")
class BucketBatchSampler(BatchSampler):
    """
    Rows of similar length together, so that little is padded. While training the lengths are blurred a little and the
    batches shuffled; in evaluation the longest rows come first, so that a batch too large for the memory fails at once.

    Registered as a `BatchSampler` with name "bucket".

    # Parameters

    batch_size, shuffle, drop_last
        See `BatchSampler`.
    padding_noise : `float`, optional (default = `0.1`)
        Each length is changed by up to this share of itself before sorting: rows meet different rows in each epoch.
    sorting_keys : `list[str]`, optional (default = `None`)
        For AllenNLP's configs. Rows are always sorted by the number of their tokens.
    """

    def __init__(
        self,
        batch_size: int,
        shuffle: bool = True,
        drop_last: bool = False,
        padding_noise: float = 0.1,
        sorting_keys: list[str] | None = None,
    ) -> None:
        super().__init__(batch_size, shuffle, drop_last)
        self.batch_size: int = batch_size
        check_number("padding_noise", padding_noise, high=1, open_high=True)
        self.padding_noise = padding_noise

    def batches(self, lengths: np.ndarray, random: np.random.Generator | None, drop_last: bool) -> Batches:
        order = _by_length(lengths, random, self.padding_noise)
        full, rest = divmod(len(order), self.batch_size)
        if random is None:
            cut = full  # the shortest rows
        else:
            # Anywhere among the lengths: cut at the end, the batch that is short or dropped would always be of the
            # same few rows.
            cut = int(random.integers(full + 1))
        start = cut * self.batch_size
        odd = order[start : start + rest].tolist()
        regular = np.concatenate([order[:start], order[start + rest :]]).reshape(full, self.batch_size).tolist()
        if random is not None:
            regular = [regular[i] for i in random.permutation(full)]
        return regular + ([odd] if odd and not drop_last else [])


@BatchSampler.register("max_tokens_sampler")
class MaxTokensBatchSampler(BatchSampler):
    """
    As many rows of similar length as fit into a number of tokens, padding counted.

    Registered as a `BatchSampler` with name "max_tokens_sampler".

    # Parameters

    max_tokens : `int`
        Rows times the longest row of a batch. A single row that is longer makes a batch of its own.
    shuffle, padding_noise, sorting_keys
        See `BucketBatchSampler`.
    """

    def __init__(
        self, max_tokens: int, shuffle: bool = True, padding_noise: float = 0.1, sorting_keys: list[str] | None = None
    ) -> None:
        super().__init__(None, shuffle)
        check_number("max_tokens", max_tokens, 1)
        self.max_tokens = max_tokens
        check_number("padding_noise", padding_noise, high=1, open_high=True)
        self.padding_noise = padding_noise

    def batches(self, lengths: np.ndarray, random: np.random.Generator | None, drop_last: bool) -> Batches:
        batches: Batches = []
        longest = 0
        for row in _by_length(lengths, random, self.padding_noise).tolist():
            longest = max(longest, int(lengths[row]))
            if batches and longest * (len(batches[-1]) + 1) <= self.max_tokens:
                batches[-1].append(row)
            else:
                batches.append([row])
                longest = int(lengths[row])
        return batches if random is None else [batches[i] for i in random.permutation(len(batches))]


def _by_length(lengths: np.ndarray, random: np.random.Generator | None, noise: float) -> np.ndarray:
    """The longest first; rows of equal length in random order, or in that of the data."""
    if random is None:
        return np.argsort(-lengths, kind="stable")
    shuffled = random.permutation(len(lengths))
    blurred = lengths[shuffled] * (1 + noise * random.uniform(-1, 1, len(lengths)))
    return shuffled[np.argsort(-blurred, kind="stable")]
