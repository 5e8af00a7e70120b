"""Tables from token ids to exit layers, independent of context."""

import json
from pathlib import Path

import torch
from torch import Tensor

from beem_plugin.common.errors import ConfigurationError, DataError, check_choice, check_number
from beem_plugin.common.registry import Registrable


class TokenHash(Registrable):
    """Computes the table of a hash-exit encoder: the block `hash`."""

    default_implementation = "frequency"

    def layers(self, counts: Tensor, num_layers: int) -> Tensor:
        """
        The last layer that is computed for each token of the vocabulary, `(vocabulary,)` int64 from 1 to `num_layers`,
        given the number of its occurrences in the training data, `counts` `(vocabulary,)` int64.
        """
        raise TypeError(f"{type(self).__name__} does not define layers")


class BucketHash(TokenHash):
    """Sorts tokens into buckets that exit at layers of their own."""

    def __init__(self, num_buckets: int, bucket_layers: list[int] | None) -> None:
        check_number("hash.num_buckets", num_buckets, low=1)
        self.num_buckets = num_buckets
        self.bucket_layers = bucket_layers

    def layers(self, counts: Tensor, num_layers: int) -> Tensor:
        buckets, layers = self.num_buckets, self.bucket_layers
        if layers is None:
            layers = [-(-number * num_layers // buckets) for number in range(1, buckets + 1)]
        if len(layers) != buckets or min(layers) < 1 or max(layers) > num_layers:
            raise ConfigurationError(
                f"hash.bucket_layers: found {list(layers)}, allowed: {buckets} layers from 1 to {num_layers}"
            )
        return torch.tensor(list(layers))[self.buckets(counts)]

    def buckets(self, counts: Tensor) -> Tensor:
        """`(vocabulary,)` int64: the bucket of each token, from 0."""
        raise TypeError(f"{type(self).__name__} does not define buckets")


@TokenHash.register("frequency")
class FrequencyHash(BucketHash):
    """
    Buckets of the training data's tokens in descending order of frequency: frequent tokens exit early. Tokens that do
    not occur are in the last bucket.

    Registered as a `TokenHash` with name "frequency", the default.

    # Parameters

    num_buckets : `int`, optional (default = `6`)
    bucket_layers : `list[int]`, optional (default = evenly spaced, the last bucket through all layers)
        The last layer of each bucket's tokens.
    balance : `str`, optional (default = `"occurrences"`)
        What is balanced between buckets: `"occurrences"` of tokens in the data, or token `"types"`. With `"types"`
        nearly all tokens of a text are in the first bucket.
    """

    def __init__(
        self, num_buckets: int = 6, bucket_layers: list[int] | None = None, balance: str = "occurrences"
    ) -> None:
        super().__init__(num_buckets, bucket_layers)
        check_choice("hash.balance", balance, ("occurrences", "types"))
        self.balance = balance

    def buckets(self, counts: Tensor) -> Tensor:
        order = counts.argsort(descending=True, stable=True)
        order = order[counts[order] > 0]
        # Twice the cumulative amount up to the middle of each token's own amount: doubled to use integers only.
        amount = counts[order] if self.balance == "occurrences" else torch.ones_like(order)
        middle = 2 * amount.cumsum(0) - amount
        bucket = torch.full_like(counts, self.num_buckets - 1)
        bucket[order] = (middle * self.num_buckets) // (2 * amount.sum().clamp(min=1))
        return bucket


@TokenHash.register("random")
class RandomHash(BucketHash):
    """
    Assigns each token of the vocabulary to a random bucket.

    Registered as a `TokenHash` with name "random".

    # Parameters

    num_buckets : `int`, optional (default = `6`)
    bucket_layers : `list[int]`, optional (default = evenly spaced, the last bucket through all layers)
    seed : `int`, optional (default = `0`)
    """

    def __init__(self, num_buckets: int = 6, bucket_layers: list[int] | None = None, seed: int = 0) -> None:
        super().__init__(num_buckets, bucket_layers)
        self.seed = seed

    def buckets(self, counts: Tensor) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed)
        return torch.randint(self.num_buckets, counts.shape, generator=generator)


@TokenHash.register("file")
class FileHash(TokenHash):
    """
    A JSON object from token ids to layers. Tokens that are not listed exit at the last layer. The file is read before
    training; the table is stored with the weights.

    Registered as a `TokenHash` with name "file".

    # Parameters

    path : `str`
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def layers(self, counts: Tensor, num_layers: int) -> Tensor:
        try:
            table = json.loads(Path(self.path).read_text(encoding="utf-8"))
            entries = {int(token): int(layer) for token, layer in table.items()}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise DataError(
                f"hash.path {self.path}: {error}; allowed: a JSON object from token ids to layers"
            ) from None
        layers = torch.full_like(counts, num_layers)
        for token, layer in entries.items():
            if not 0 <= token < len(counts) or not 1 <= layer <= num_layers:
                raise DataError(
                    f"hash.path {self.path}: found token {token} with layer {layer}, allowed: tokens 0 to "
                    f"{len(counts) - 1}, layers 1 to {num_layers}"
                )
            layers[token] = layer
        return layers
