"""Static tensors of captions whose tokens are at different depths."""

from typing import Any

import torch
from torch import Tensor

from beem_plugin.backbones.gpt2_decoder import Gpt2Decoder
from beem_plugin.decoding.mixed_depths.weights import DecoderWeights
from beem_plugin.kernels.launch import launch


class DecodingState:
    """
    Buffers that keep their addresses, so that captured graphs can read and write them. A *place* is the index of a
    token: row times `max_tokens` plus position. Kernels name their parameters after the buffers, and each kernel has a
    reference function in torch beside it, which computes without `use_kernels`.

    `network` is one that `DecoderWeights` supports; its weights are copied. There are up to `capacity` captions, one an
    image, of at most `max_tokens` new tokens, EOS included; `patches` of an image are 0 for text alone.
    """

    def __init__(self, network: Any, capacity: int, max_tokens: int, patches: int, use_kernels: bool) -> None:
        decoder = network.backbone.decoder
        self.weights = weights = DecoderWeights(network, patches > 0)
        self.token_embeddings, self.position_embeddings = weights.token_embeddings, weights.position_embeddings
        self.scales = weights.scales
        self.capacity, self.max_tokens, self.patches = capacity, max_tokens, patches
        self.num_layers, self.size, self.use_kernels = decoder.num_layers, decoder.hidden_size, use_kernels
        like = weights.token_embeddings
        heads, head_size, places = decoder.num_heads, decoder.head_size, capacity * max_tokens

        def integers(*shape: int, dtype: torch.dtype = torch.int32) -> Tensor:
            return torch.zeros(*shape, dtype=dtype, device=like.device)

        # The block that each caption's token enters next, -1 for a caption that has ended; then the starts of graphs.
        self.progress = integers(capacity + 1)
        self.layers, self.launches = self.progress[:capacity], self.progress[capacity:]
        self.positions = integers(capacity)
        # The number of blocks in which each token has keys and values.
        self.filled = integers(capacity, max_tokens)
        # Whether this launch runs a token through its row's block, where skipped blocks are recomputed.
        self.recomputed = integers(capacity, max_tokens)
        # Places of the tokens in each block: the captions' current tokens, then earlier ones that skipped the block.
        self.listed = integers(decoder.num_layers, places)
        self.counts = integers(decoder.num_layers, 2)  # current tokens, all tokens
        # The exit that each row's token is at, 0 for none.
        self.at_exit = integers(capacity, dtype=torch.int64)
        # Places of the tokens whose logits are computed, for each vocabulary matrix.
        self.head_places = integers(weights.vocabulary.groups, capacity)
        self.head_counts = integers(weights.vocabulary.groups, 2)
        # The exit's summary of each row's token.
        self.token = integers(capacity, dtype=torch.int64)
        self.log_probability = torch.zeros(capacity, device=like.device)
        self.confidence, self.margin, self.entropy = (
            torch.zeros(capacity, dtype=torch.float64, device=like.device) for _ in range(3)
        )
        # The captions; exit 0 means that there is no token.
        self.tokens, self.exits = integers(capacity, max_tokens), integers(capacity, max_tokens)
        self.log_probabilities = torch.zeros(capacity, max_tokens, device=like.device)

        self.hidden, self.query, self.attention_output = (like.new_zeros(places, self.size) for _ in range(3))
        self.inner = like.new_zeros(places, weights.mlp_in.outputs)
        self.logits = like.new_zeros(capacity, weights.vocabulary.outputs)
        shape = (decoder.num_layers, capacity, heads)
        self.keys, self.values = (like.new_zeros(*shape, max_tokens, head_size) for _ in range(2))
        self.image_keys, self.image_values = (like.new_zeros(*shape, patches, head_size) for _ in range(2))

    @staticmethod
    def num_bytes(decoder: Gpt2Decoder, capacity: int, max_tokens: int, patches: int, like: Tensor) -> int:
        """Approximate size of the buffers."""
        keys_values = 2 * decoder.num_layers * capacity * (max_tokens + patches) * decoder.hidden_size
        work = capacity * max_tokens * 7 * decoder.hidden_size + capacity * decoder.vocab_size
        return (keys_values + work) * like.element_size()

    def reset(self, captions: int, first_exit: Tensor | int = 0) -> None:
        """`captions` rows enter block 1; `first_exit` is the number of the exit after it, 0 for none."""
        for tensor in (self.progress, self.positions, self.filled, self.exits, self.at_exit):
            tensor.zero_()
        self.layers[captions:] = -1
        self.at_exit[:captions] = first_exit

    def places(self, count: int) -> Tensor:
        """`(count,)` int64: the places of the captions' current tokens."""
        first = torch.arange(0, count * self.max_tokens, self.max_tokens, device=self.positions.device)
        return first + self.positions[:count]

    def launch(self, kernel: Any, grid: tuple[int, ...], /, num_warps: int = 4, **given: Any) -> None:
        """Launches `kernel` with the arguments `given`; its other parameters are attributes of the same names."""
        values = {name: given[name] if name in given else getattr(self, name) for name in kernel.arg_names}
        constants = {name: value for name, value in values.items() if name.isupper()}
        launch(
            kernel, grid, *(values[name] for name in values if name not in constants), num_warps=num_warps, **constants
        )
