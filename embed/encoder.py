"""The encoder: texts to vectors, equal to those of the model's own library.

Texts come in windows: each is tokenised while the one before is computed.

Legend: N texts, B texts in a batch, D dimensions.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np

from scannery.embed.batching import Batch
from scannery.embed.devices.cores import give_back_memory, on_one_core
from scannery.embed.devices.factory import open_device
from scannery.embed.devices.precision import worst_cosine
from scannery.embed.devices.protocol import Device, Work
from scannery.embed.errors import InvalidArgumentError, InvalidTextError
from scannery.embed.fingerprint import Fingerprint
from scannery.embed.models.loading import ModelOptions, load_model, recalled, tokens_of
from scannery.embed.models.model_files import find_model
from scannery.embed.statistics import EncodedWindow, EncoderStatistics
from scannery.embed.tokenization import FastTokens, Features, TokenizedTexts, Tokens, text_problem

if TYPE_CHECKING:
    from scannery.embed.text.chunking import Chunker

__all__ = ["Encoder", "Invalid", "prepared", "refuse"]


T = TypeVar("T")
Invalid: TypeAlias = Literal["raise", "nan"]
"""Handling of a text that has no vector: raise an error for the call, or return a row of NaN for the text."""


def one_ahead(
    windows: Iterator[Sequence[str]], prepare: Callable[[Sequence[str]], T], *, alone: bool
) -> Iterator[tuple[Sequence[str], T]]:
    """Yield each window with `prepare(window)`, computed in a thread while the caller handles the previous window.

    Args:
        windows: read in this thread, at most one ahead.
        prepare: what the thread computes.
        alone: there is only one window, such as a query: starting a thread would take longer.

    """
    current = next(windows, None)
    if current is None:
        return
    if alone:
        yield current, prepare(current)
        return
    with ThreadPoolExecutor(1, thread_name_prefix="scannery-tokenize") as background:
        ready: Future[T] = background.submit(prepare, current)
        while current is not None:
            following = next(windows, None)
            done = ready.result()
            if following is not None:
                ready = background.submit(prepare, following)
            yield current, done
            current = following


def prepared(
    tokens: Tokens, device: Device, texts: Sequence[str]
) -> tuple[dict[int, str], TokenizedTexts, float]:
    """Return problems by row, the tokens of each text (of "" for a row with a problem), and the seconds it took."""
    started = time.perf_counter()
    problems = _problems(texts)
    batch = tokens.prepare(
        ["" if row in problems else text for row, text in enumerate(texts)] if problems else texts
    )
    items, lengths_N, _ = batch
    longest = device.longest_tokens
    too_long = [] if longest is None else np.flatnonzero(lengths_N > longest).tolist()
    if too_long:
        [empty], [length], _ = tokens.prepare([""])
        for row in too_long:
            problems[row] = (
                f"has {lengths_N[row]} tokens; {device.name} takes at most {longest} (max_tokens cuts texts off)"
            )
            items[row], lengths_N[row] = empty, length
    return problems, batch, time.perf_counter() - started


def _problems(texts: Sequence[str]) -> dict[int, str]:
    """Return why texts cannot be tokenised, by row. Plain ASCII, which most are, costs no call for each text."""
    rows: Sequence[int] = range(len(texts))
    if set(map(type, texts)) <= {str}:
        rows = [row for row, plain in enumerate(map(str.isascii, texts)) if not plain]
    return {row: problem for row in rows if (problem := text_problem(texts[row]))}


def refuse(problems: dict[int, str], at: int, invalid: Invalid) -> None:
    """Raise for the first text with a problem, of a window whose first text has the position `at` in the call."""
    if problems and invalid == "raise":
        row = min(problems)
        raise InvalidTextError(problems[row], index=at + row)


FEWEST_TOKENS = 8
"""A shorter text takes as long as one of this many tokens; from there on, time grows with the tokens."""
NOT_FINITE = "the model gives it a vector that is not finite"

# Sentences of many lengths and scripts. A smaller type is used only if their vectors stay the same.
PROBE_TEXTS = (
    "Hi", "electric cars and the climate", "Wie entstehen Vulkane?", "Что такое машинное обучение?",
    "機械学習とは何ですか。", "Numbers: 3.14159, 2,718, -40 °C, 1e-9 and 0x7f; symbols: §, €, →, ≥.",
    "The editor asked the engineer why the build had failed again, and the engineer, who had slept for three "
    "hours, said that the build had not failed: it had merely not yet succeeded.",
    "Bread rises because yeast turns sugar into gas. The gas is caught in a net of gluten, which kneading makes "
    "strong and time makes soft. Salt slows the yeast down, and cold slows it further, so that a dough which rests "
    "in the refrigerator overnight tastes of more than flour and water. Heat ends all of this within minutes.",
)  # fmt: skip


class Encoder:
    """Turns texts into vectors with one model on one device. Safe to share between threads.

    Make one with `Encoder.load`. A process may fork after loading, but not after encoding.

    >>> encoder = Encoder.load("sentence-transformers/all-MiniLM-L6-v2", device="cpu")
    >>> encoder.encode_queries(["how do volcanoes form"]).shape
    (1, 384)
    """

    def __init__(self, model: Any, fingerprint: Fingerprint, device: Device) -> None:
        """Put a loaded model on a device; use `Encoder.load`.

        Args:
            model: modules as `load_model` returns them, float32 on the CPU.
            fingerprint: of the model.
            device: the device to run on.

        Raises:
            InvalidArgumentError: the device needs a model with a plain tokenizer, and this model has none.

        """
        self.fingerprint = fingerprint
        self._tokenizer = getattr(model, "tokenizer", None)
        self._documents, self._queries = tokens_of(model, fingerprint)
        self._device = device
        self._texts = self._tokens = self._padding_tokens = 0
        self._seconds = 0.0
        self._lock = threading.Lock()
        self._token_s = math.inf
        """How long the last short query by itself took, for each token."""
        self._chunkers: dict[tuple[int, int, bool], Chunker] = {}
        if isinstance(self._documents, FastTokens) and isinstance(self._queries, FastTokens):
            # For a lean model, `lean_notes` checked this already.
            optional = self._documents.mask_is_optional or on_one_core(
                lambda: self._mask_is_optional(model, self._documents)
            )
            self._documents.mask_is_optional = self._queries.mask_is_optional = optional
        elif device.fixed_shapes:
            raise InvalidArgumentError(
                f"device {device.name} needs a model with a plain tokenizer, {fingerprint.model} has none",
                field="device",
            )
        device.place(model, self._forward, self._probes())
        # The vocabulary is copied now, in the process that others are forked from.
        self._queries.of_one("")

    @classmethod
    def load(
        cls,
        model: str | Path,
        *,
        label: str | None = None,
        device: str = "auto",
        dtype: str = "auto",
        dimensions: int | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        max_tokens: int | None = None,
        cap_tokens: int | None = None,
        threads: int | None = None,
        expected: Fingerprint | None = None,
        widths: Sequence[int] | None = None,
    ) -> Encoder:
        """Return the encoder for `model`, a sentence-transformers model: a name, or a local folder.

        Args:
            model: searched as a folder, in installed packages, in the hub's cache, then on the hub.
            label: what the fingerprint and errors call it; None: `model`.
            device: `auto` (CUDA if there is one, else the CPU), `cpu`, `cuda` or `cuda:1`, `xla`.
            dtype: `auto`, `float32`, `bfloat16` or `float16`. `auto` takes the device's fastest type if its vectors
                have a cosine of at least 0.999 to those of float32 on a set of probes, else float32.
            dimensions: number of leading components to keep, for models trained for it (Matryoshka); None: all.
            query_prompt: text in front of every query; None takes the model's own.
            document_prompt: text in front of every document; None takes the model's own.
            max_tokens: tokens after which texts are cut off; None takes the model's own limit.
            cap_tokens: in place of `max_tokens`: the same, where the model's own limit is not lower.
            threads: cores to use on a CPU; None takes all that torch sees (OMP_NUM_THREADS limits them).
            expected: fingerprint that the model must have. The hashes of its files are compared before any is loaded.
            widths: on XLA, to how many tokens the texts of large calls are padded, from `plan_widths`; None: chosen
                from the first large call. Other devices take any width.

        Raises:
            ModelNotFoundError: there is no such model.
            InvalidModelError: it is damaged, incomplete, needs its own code, or its weights are pickles.
            FingerprintMismatchError: its fingerprint is not the expected one.
            InvalidArgumentError: an option does not fit the model or the device.
            DeviceError: this machine has no such device.
        """
        options = ModelOptions(dimensions, query_prompt, document_prompt, max_tokens, cap_tokens)
        modules, fingerprint = load_model(model, options, device, expected, label=label)
        opened = open_device(
            device,
            dtype,
            threads=threads,
            max_tokens=fingerprint.max_tokens,
            widths=widths,
            label=fingerprint.model,
        )
        return cls(modules, fingerprint, opened)

    @staticmethod
    def known_fingerprint(
        model: str | Path,
        *,
        label: str | None = None,
        dimensions: int | None = None,
        query_prompt: str | None = None,
        document_prompt: str | None = None,
        max_tokens: int | None = None,
        cap_tokens: int | None = None,
    ) -> Fingerprint | None:
        """Return the fingerprint that `load` would give, without loading; None if this machine never loaded the model.

        Reads and hashes the files of the model. Arguments are those of `load`.

        Raises:
            ModelNotFoundError: there is no such model.

        """
        options = ModelOptions(dimensions, query_prompt, document_prompt, max_tokens, cap_tokens)
        return recalled(find_model(model), label or str(model), options.identity)

    @property
    def dimensions(self) -> int:
        """Components of a vector."""
        return self.fingerprint.dimensions

    @property
    def max_tokens(self) -> int:
        """Tokens, special ones included, after which a text is cut off."""
        return self.fingerprint.max_tokens

    @property
    def device(self) -> str:
        """The device it runs on, such as `cpu` or `cuda:0`."""
        return self._device.name

    @property
    def dtype(self) -> str:
        """The type it computes in: `float32`, `bfloat16` or `float16`. Vectors are always float32."""
        return self._device.dtype

    def encode_documents(
        self, texts: Sequence[str], *, invalid: Invalid = "raise", cut_tokens: np.ndarray | None = None
    ) -> np.ndarray:
        """Return the vectors of `texts`, float32 `(len(texts), dimensions)`, in input order.

        Args:
            texts: any number, of any length; tokens beyond `max_tokens` are cut off.
            invalid: `nan` gives a text without a vector a row of NaN instead of failing the call.
            cut_tokens: an array of integers, `(len(texts),)`; gets the number of tokens that were cut off each text,
                about, and 0 where the model has no plain tokenizer.

        Raises:
            InvalidTextError: a text is not a string or not valid Unicode, or its vector is not finite.
        """
        return self._encode(texts, self._documents, invalid, cut_tokens)

    def encode_queries(self, texts: Sequence[str], *, invalid: Invalid = "raise") -> np.ndarray:
        """Return the vectors of `texts` as queries, float32 `(len(texts), dimensions)`, in input order.

        Arguments and errors are those of `encode_documents`.
        """
        if len(texts) == 1 and not isinstance(texts, str):
            vector_D = self._vector_of(texts[0])
            if vector_D is not None:
                return vector_D[None]
        return self._encode(texts, self._queries, invalid)

    def encode_now(self, text: str, within_s: float) -> np.ndarray | None:
        """Return the vector of one query, float32 `(dimensions,)`, as `encode_queries` does, in this thread at once.

        None: it is for `encode_queries`, since it is long, is not plain ASCII or has a problem, since the device makes
        batches only, or since it would take longer than `within_s` seconds at the last query's time for a token.
        """
        return self._vector_of(text, within_s)

    def encode_windows(self, texts: Iterable[str]) -> Generator[EncodedWindow, None, None]:
        """Yield the vectors of `texts` as documents in windows: as many texts as the device sorts by length together.

        Texts are read in this thread, and tokenised one window ahead of the computation. A text without a vector fails
        no call: it has a row of NaN and a problem.
        """
        yield from self._blocks(self._windows(texts), self._documents, "nan")

    def encode_stream(
        self, texts: Iterable[str], *, invalid: Invalid = "raise"
    ) -> Generator[np.ndarray, None, None]:
        """Yield the vectors of `texts` as documents in blocks, float32 `(n, dimensions)`, in input order.

        Memory does not depend on the length of the stream: at most three blocks (of 4,096 texts on a CPU) are held.
        Texts are read and tokenised one block ahead of the computation.

        Raises:
            InvalidTextError: as `encode_documents`; the index counts from the start of the stream.
        """
        for window in self._blocks(self._windows(texts), self._documents, invalid):
            yield window.vectors_ND

    @property
    def tokenizer_json(self) -> str | None:
        """The tokenizer as a Hugging Face `tokenizer.json`; None if it gives no offsets."""
        tokenizer: Any = self._tokenizer
        fast = getattr(tokenizer, "is_fast", False)
        return str(tokenizer.backend_tokenizer.to_str()) if fast else None

    @property
    def passage_tokens(self) -> int:
        """Most tokens of prompt, title and passage together: `max_tokens` without the special ones."""
        tokenizer: Any = self._tokenizer
        special = tokenizer.num_special_tokens_to_add() if getattr(tokenizer, "is_fast", False) else 0
        return self.max_tokens - int(special)

    def chunker(self, max_tokens: int, overlap_tokens: int, *, headings: bool = False) -> Chunker:
        """Return a chunker that counts tokens as this encoder does.

        Args:
            max_tokens: most tokens in a passage.
            overlap_tokens: most tokens that a passage repeats from the end of the previous one.
            headings: read texts as Markdown: cut at headings, and keep tables whole.

        Raises:
            InvalidArgumentError: the encoder would cut off passages of `max_tokens`, or the overlap is too large.
        """
        from scannery.embed.text.chunking import chunker_for

        # One of each kind: to make one parses the vocabulary, and a build asks for each of its units.
        with self._lock:
            chunker = self._chunkers.get((max_tokens, overlap_tokens, headings))
            if chunker is None:
                chunker = self._chunkers[max_tokens, overlap_tokens, headings] = chunker_for(
                    self.fingerprint.model,
                    self.tokenizer_json,
                    self.passage_tokens,
                    max_tokens,
                    overlap_tokens,
                    prompt=self.fingerprint.document_prompt,
                    headings=headings,
                )
            return chunker

    def plan_widths(self, texts: Sequence[str]) -> tuple[int, ...]:
        """Return the widths, in tokens, for encoders on XLA of a corpus of which `texts` are a sample, as documents.

        Any encoder of the same model can plan, on any device. All workers that get these widths compile equal shapes.
        """
        from scannery.embed.devices.xla import plan_widths

        return plan_widths(self._documents.prepare(texts).lengths_N, self.max_tokens)

    def use_widths(self, widths: Sequence[int]) -> None:
        """Take widths as of `plan_widths`, unless shapes for large calls are compiled already; only XLA needs them.

        Raises:
            InvalidArgumentError: a width is not between 1 and the longest text, in tokens.

        """
        self._device.plan(widths)

    def statistics(self) -> EncoderStatistics:
        """Return the counts since the encoder was loaded."""
        with self._lock:
            return EncoderStatistics(
                texts=self._texts,
                tokens=self._tokens,
                padding_tokens=self._padding_tokens,
                seconds=self._seconds,
            )

    def _encode(
        self, texts: Sequence[str], tokens: Tokens, invalid: Invalid, cut_tokens: np.ndarray | None = None
    ) -> np.ndarray:
        if isinstance(texts, str):
            raise InvalidArgumentError("texts must be a sequence of strings, got one string", field="texts")
        size = self._device.window_texts
        windows = (texts[at : at + size] for at in range(0, len(texts), size))
        vectors_ND = np.empty((len(texts), self.dimensions), np.float32)
        at = 0
        for window in self._blocks(windows, tokens, invalid, alone=len(texts) <= size):
            end = at + len(window.vectors_ND)
            vectors_ND[at:end] = window.vectors_ND
            if cut_tokens is not None:
                cut_tokens[at:end] = window.cut_N
            at = end
        return vectors_ND

    def _vector_of(self, text: object, within_s: float = math.inf) -> np.ndarray | None:
        """Return the vector, (D,), of a query of plain text; None: it is computed as all others, or has a problem.

        None as well if it is expected to take longer than `within_s` seconds.

        The little Python of this way is what one text at a time gains by: behind a pass over the weights, all of it
        runs from memory.
        """
        started = time.perf_counter()
        ids = self._queries.of_one(text) if isinstance(text, str) else None
        if ids is None:
            return None
        tokens = max(len(ids), FEWEST_TOKENS)
        if self._token_s * tokens > within_s or (vector_D := self._device.vector_of(ids)) is None:
            return None
        seconds = time.perf_counter() - started
        self._token_s = seconds / tokens
        self._count(1, len(ids), 0, seconds)
        return vector_D[: self.dimensions]

    def _windows(self, texts: Iterable[str]) -> Iterator[Sequence[str]]:
        iterator = iter(texts)
        return iter(lambda: list(islice(iterator, self._device.window_texts)), [])

    def _blocks(
        self, windows: Iterator[Sequence[str]], tokens: Tokens, invalid: Invalid, *, alone: bool = False
    ) -> Iterator[EncodedWindow]:
        """Yield each window with its vectors; `alone`: there is only one."""
        if invalid not in ("raise", "nan"):
            raise InvalidArgumentError(f"invalid must be 'raise' or 'nan', got {invalid!r}", field="invalid")
        prepare = partial(prepared, tokens, self._device)
        at = 0
        before = time.perf_counter()
        for window, (problems, texts, tokenise_s) in one_ahead(windows, prepare, alone=alone):
            started = time.perf_counter()
            refuse(problems, at, invalid)
            vectors_ND, padding_tokens = self._compute(tokens, texts.items, texts.lengths_N)
            if problems or not np.isfinite(vectors_ND).all():
                bad_N = np.flatnonzero(~np.isfinite(vectors_ND).all(axis=1))
                problems.update(dict.fromkeys(bad_N.tolist(), NOT_FINITE))
                refuse(problems, at, invalid)
                vectors_ND[list(problems)] = np.nan
            at += len(window)
            if len(window) == self._device.window_texts:
                give_back_memory()
            ended = time.perf_counter()
            total = int(texts.lengths_N.sum())
            self._count(len(window), total, padding_tokens, ended - started)
            yield EncodedWindow(
                vectors_ND=vectors_ND, cut_N=texts.cut_N, problems=problems,
                tokens=total, padding_tokens=padding_tokens,
                tokenise_s=tokenise_s, wait_s=started - before, compute_s=ended - started,
            )  # fmt: skip
            before = time.perf_counter()

    def _compute(self, tokens: Tokens, items: list[Any], lengths_N: np.ndarray) -> tuple[np.ndarray, int]:
        """Return the vectors of texts, and the number of tokens computed only to fill up batches."""
        vectors_ND = np.empty((len(items), self.dimensions), np.float32)
        batches = list(self._device.batches(lengths_N))

        def emit(batch: Batch, vectors_BD: np.ndarray) -> None:
            vectors_ND[batch.positions] = vectors_BD[: len(batch.positions)]

        def collate(batch: Batch) -> Features:
            return tokens.collate([items[row] for row in batch.positions], batch.bucket)

        def work() -> Work:
            for batch in batches:
                yield batch, partial(collate, batch)

        self._device.run(work(), emit)
        computed = sum(batch.bucket.rows * batch.bucket.width for batch in batches)
        return vectors_ND, computed - int(lengths_N.sum())

    def _forward(self, model: Any, features: Features) -> Any:
        vectors_BD = model(features, task=features["task"])["sentence_embedding"]
        return vectors_BD[:, : self.dimensions].float()

    def _probes(self) -> list[Features]:
        """Return a batch of documents, and a batch of queries if the model can treat queries differently."""
        probes = [
            tokens.collate(tokens.prepare(PROBE_TEXTS)[0]) for tokens in (self._documents, self._queries)
        ]
        ignored = set() if "Router" in self.fingerprint.modules else {"task"}
        constants = [
            {k: v for k, v in p.items() if not hasattr(v, "shape") and k not in ignored} for p in probes
        ]
        return probes if constants[0] != constants[1] else probes[:1]

    def _mask_is_optional(self, model: Any, tokens: Tokens) -> bool:
        """Return whether this model gives the same vectors without an attention mask as with one of all ones."""
        import torch

        with torch.inference_mode():
            full = tokens.collate(tokens.prepare([PROBE_TEXTS[-1]] * 2)[0])
            bare = {name: value for name, value in full.items() if name != "attention_mask"}
            expected_ND = self._forward(model, full).numpy()
        return worst_cosine(expected_ND, model, self._forward, bare) > 0.99999

    def _count(self, texts: int, tokens: int, padding_tokens: int, seconds: float) -> None:
        with self._lock:
            self._texts += texts
            self._tokens += tokens
            self._padding_tokens += padding_tokens
            self._seconds += seconds
