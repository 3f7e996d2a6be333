"""The layers of BERT for inference. Imports torch at its top, so import this module inside functions.

Legend: B texts, T tokens, S tokens of packed texts, D dimensions, H heads, d dimensions of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias, cast

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from scannery.embed.batching import is_packed
from scannery.embed.devices.packed_attention import packed_attention
from scannery.embed.tokenization import FastTokens, Features

__all__ = ["LeanModel", "LeanTokenizer"]

Weights: TypeAlias = Mapping[str, Tensor]
Attention: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries, keys and values, each (B, T, H, d), or (S, H, d) of packed texts → attended values of the same shape."""


class LeanTokenizer:
    """The part of the transformers tokenizer interface that a chunker uses."""

    is_fast = True

    def __init__(self, backend: Tokenizer, special_tokens: int) -> None:
        """Wrap a tokenizer.

        Args:
            backend: of the library `tokenizers`.
            special_tokens: number of special tokens that the model adds to a text.

        """
        self.backend_tokenizer = backend
        self._special_tokens = special_tokens

    def num_special_tokens_to_add(self) -> int:
        """Return the number of special tokens that the model adds to a text."""
        return self._special_tokens


class LeanModel(nn.Sequential):
    """BERT, pooling, and normalisation if the model has it; features to features, as in sentence-transformers."""

    takes_packed = True
    """Whether `forward` takes packed batches (batching.py), too."""

    def __init__(self, notes: Mapping[str, Any], weights: Weights) -> None:
        """Make the layers.

        Args:
            notes: of `lean_notes`.
            weights: tensors of the weight file by name.

        """
        shape = notes["shape"]
        bert_weights = {name.removeprefix("bert."): tensor.float() for name, tensor in weights.items()}
        pool = _MeanPooling() if shape["pooling"] == "mean" else _FirstPooling()
        super().__init__(_Bert(shape, bert_weights), pool, *([_Normalize()] if shape["normalize"] else []))
        self.eval().requires_grad_(False)
        self.pooling: str = shape["pooling"]
        """`mean`, or `cls`: the first token."""
        self.normalizes = bool(shape["normalize"])
        """Whether vectors are scaled to length 1."""
        tokenizer = Tokenizer.from_str(notes["tokenizer"])
        self.tokenizer = LeanTokenizer(tokenizer, int(notes["special_tokens"]))
        documents, queries = (notes["tokens"][kind] for kind in ("document", "query"))
        self.tokens = FastTokens.from_dict(documents, tokenizer), FastTokens.from_dict(queries, tokenizer)
        """Make batches of documents, and of queries."""
        for tokens in self.tokens:
            tokens.mask_is_optional = True  # checked by `lean_notes`

    def join_projections(self) -> None:
        """Make queries, keys and values of each layer one product, which reads its input once; a GPU gains by it."""
        bert: Any = self[0]
        for layer in bert.layers:
            layer.join_projections()

    def forward(self, features: Features, task: str | None = None) -> Features:
        """Return the features with `sentence_embedding`, (B, D)."""
        for module in self:
            features = module(features)
        return features


class _Bert(nn.Module):
    def __init__(self, shape: Mapping[str, Any], weights: Weights) -> None:
        super().__init__()
        epsilon = float(shape["epsilon"])
        self.words, self.positions, self.kinds = (
            _embedding(weights, f"embeddings.{name}_embeddings")
            for name in ("word", "position", "token_type")
        )
        self.norm = _norm(weights, "embeddings.LayerNorm", epsilon)
        self.layers = nn.ModuleList(
            _Layer(weights, f"encoder.layer.{number}", int(shape["heads"]), epsilon)
            for number in range(int(shape["layers"]))
        )

    def forward(self, features: Features) -> Features:
        if is_packed(features):
            return self._packed(features)
        ids_BT, kinds_BT = features["input_ids"], features.get("token_type_ids")
        kinds = self.kinds.weight[0] if kinds_BT is None else self.kinds(kinds_BT)
        x_BTD = self.words(ids_BT) + kinds + self.positions.weight[: ids_BT.shape[1]]
        mask = features.get("attention_mask")
        attention_mask = None if mask is None else mask[:, None, None, :].bool()
        return features | {
            "token_embeddings": self._through(x_BTD, partial(_padded_attention, attention_mask))
        }

    def _packed(self, features: Features) -> Features:
        positions_SD = self.positions.weight[features["positions"]]
        x_SD = self.words(features["input_ids"]) + self.kinds.weight[0] + positions_SD
        return features | {"token_embeddings": self._through(x_SD, partial(packed_attention, features))}

    def _through(self, x: Tensor, attend: Attention) -> Tensor:
        x = self.norm(x)
        for layer in self.layers:
            x = layer(x, attend)
        return x


class _Layer(nn.Module):
    def __init__(self, weights: Weights, name: str, heads: int, epsilon: float) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (
            _linear(weights, f"{name}.attention.self.{part}") for part in ("query", "key", "value")
        )
        self.joined: nn.Linear | None = None
        """Queries, keys and values in one, in place of the three."""
        self.attended = _linear(weights, f"{name}.attention.output.dense")
        self.attended_norm = _norm(weights, f"{name}.attention.output.LayerNorm", epsilon)
        self.wide = _linear(weights, f"{name}.intermediate.dense")
        self.narrow = _linear(weights, f"{name}.output.dense")
        self.norm = _norm(weights, f"{name}.output.LayerNorm", epsilon)

    def forward(self, x: Tensor, attend: Attention) -> Tensor:
        by_head = (*x.shape[:-1], self.heads, -1)
        query, key, value = (part.view(by_head) for part in self._projected(x))
        y = self.attended(attend(query, key, value).reshape(x.shape))
        x = self.attended_norm(y + x)
        y = self.narrow(functional.gelu(self.wide(x)))
        result: Tensor = self.norm(y + x)
        return result

    def join_projections(self) -> None:
        parts = (self.query, self.key, self.value)
        weight, bias = (torch.cat([getattr(part, name) for part in parts]) for name in ("weight", "bias"))
        self.joined = _linear({"joined.weight": weight, "joined.bias": bias}, "joined")
        del self.query, self.key, self.value

    def _projected(self, x: Tensor) -> Sequence[Tensor]:
        if self.joined is not None:
            return cast("Sequence[Tensor]", self.joined(x).chunk(3, dim=-1))
        return self.query(x), self.key(x), self.value(x)


def _padded_attention(attention_mask: Tensor | None, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return the attention of padded texts, (B, T, H, d); `attention_mask`: mask of the tokens, (B, 1, 1, T)."""
    q_BHTd, k_BHTd, v_BHTd = (part.transpose(1, 2) for part in (query, key, value))
    y_BHTd = functional.scaled_dot_product_attention(q_BHTd, k_BHTd, v_BHTd, attn_mask=attention_mask)
    return y_BHTd.transpose(1, 2)


class _MeanPooling(nn.Module):
    def forward(self, features: Features) -> Features:
        x_BTD, mask = features["token_embeddings"], features.get("attention_mask")
        if is_packed(features):
            # Unlike `index_add`, which adds in any order on a GPU, this gives the same bits every time; `unsafe` leaves
            # out checks that would wait for the device.
            mean_BD = torch.segment_reduce(x_BTD, "mean", offsets=features["ends"].long(), unsafe=True)
            return features | {"sentence_embedding": mean_BD}
        if mask is None:
            return features | {"sentence_embedding": x_BTD.mean(dim=1)}
        mask_BT1 = mask[:, :, None].to(x_BTD.dtype)
        sums_BD = (x_BTD * mask_BT1).sum(dim=1)
        return features | {"sentence_embedding": sums_BD / mask_BT1.sum(dim=1).clamp(min=1e-9)}


class _FirstPooling(nn.Module):
    def forward(self, features: Features) -> Features:
        x_BTD = features["token_embeddings"]
        first_BD = x_BTD[features["ends"][:-1]] if is_packed(features) else x_BTD[:, 0]
        return features | {"sentence_embedding": first_BD}


class _Normalize(nn.Module):
    def forward(self, features: Features) -> Features:
        return features | {"sentence_embedding": functional.normalize(features["sentence_embedding"], dim=1)}


def _embedding(weights: Weights, name: str) -> nn.Embedding:
    weight = weights[f"{name}.weight"]
    embedding = nn.Embedding(1, weight.shape[1])
    embedding.num_embeddings, embedding.weight = len(weight), nn.Parameter(weight, False)
    return embedding


def _linear(weights: Weights, name: str) -> nn.Linear:
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    # Initialising a layer of full size takes longer than reading the file, `skip_init` even longer.
    linear = nn.Linear(1, 1)
    linear.out_features, linear.in_features = weight.shape
    linear.weight, linear.bias = nn.Parameter(weight, False), nn.Parameter(bias, False)
    return linear


def _norm(weights: Weights, name: str, epsilon: float) -> nn.LayerNorm:
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    norm = nn.LayerNorm(len(weight), eps=epsilon)
    norm.weight, norm.bias = nn.Parameter(weight, False), nn.Parameter(bias, False)
    return norm
