"""Tiny sentence-transformers models with random weights, one for each kind of architecture, made on the spot."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

__all__ = ["MODELS", "make_cross_encoder", "make_model"]

CORPUS = [
    "How do volcanoes form? Magma rises through cracks in the crust of the earth, and cools to stone.",
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on. Numbers: 0 1 2 3 4 5 6 7 8 9.",
    "Grüße aus Zürich, naïve café; русский текст; 日本語の文章です。",
    "query: document: passage: search for something that is not there",
] * 4


def _tokenizer(kind: str) -> Any:
    from transformers import PreTrainedTokenizerFast

    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    names = list(special.values())
    if kind == "wordpiece":
        raw = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        raw.normalizer = normalizers.BertNormalizer()
        raw.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer: Any = trainers.WordPieceTrainer(vocab_size=400, special_tokens=names, show_progress=False)
    else:
        raw = Tokenizer(models.BPE())
        raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        raw.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=500,
            special_tokens=names,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    raw.train_from_iterator(CORPUS, trainer)
    ids = {name: raw.token_to_id(name) for name in names}
    if kind == "decoder":
        raw.post_processor = processors.TemplateProcessing(
            single="$A [SEP]", special_tokens=[("[SEP]", ids["[SEP]"])]
        )
    else:
        raw.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])]
        )
    side = "left" if kind == "decoder" else "right"
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, model_max_length=64, padding_side=side, **special,
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


# On XLA each layer is traced and compiled for every shape, which is most of the time of a test.
LAYERS = 1 if os.environ.get("SCANNERY_TEST_DEVICE") == "xla" else 2

SIZES: dict[str, Any] = {
    "hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 80, "pad_token_id": 0,
}  # fmt: skip


def _transformer(folder: Path, kind: str, tokenizer: Any) -> Any:
    import transformers as hf
    from sentence_transformers.sentence_transformer.modules import Transformer

    vocabulary = len(tokenizer)
    made = {
        "bert": lambda: hf.BertModel(hf.BertConfig(vocab_size=vocabulary, **SIZES)),
        "roberta": lambda: hf.RobertaModel(hf.RobertaConfig(vocab_size=vocabulary, **SIZES)),
        "mpnet": lambda: hf.MPNetModel(hf.MPNetConfig(vocab_size=vocabulary, **SIZES)),
        "qwen": lambda: hf.Qwen2Model(hf.Qwen2Config(vocab_size=vocabulary, num_key_value_heads=2, **SIZES)),
    }[kind]()
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return Transformer(str(folder))


def _model(folder: Path, kind: str, tokenizer: str, *heads: Callable[[], Any], **options: Any) -> None:
    from sentence_transformers import SentenceTransformer

    transformer = _transformer(folder / "parts", kind, _tokenizer(tokenizer))
    model = SentenceTransformer(modules=[transformer, *(head() for head in heads)], device="cpu", **options)
    model.save(str(folder / "model"), create_model_card=False)


def _bert(folder: Path) -> None:
    from sentence_transformers.sentence_transformer import modules

    _model(folder, "bert", "wordpiece", lambda: modules.Pooling(32, "cls"), modules.Normalize)


def _roberta(folder: Path) -> None:
    from sentence_transformers.sentence_transformer import modules

    _model(folder, "roberta", "bpe", lambda: modules.Pooling(32, ["mean", "max"]))


def _mpnet_dense(folder: Path) -> None:
    """With a Dense head, prompts that are not pooled, and Matryoshka truncation."""
    from sentence_transformers.sentence_transformer import modules

    _model(
        folder, "mpnet", "wordpiece",
        lambda: modules.Pooling(32, "mean", include_prompt=False),
        lambda: modules.Dense(32, 24, activation_function=torch.nn.Tanh()),
        modules.Normalize,
        prompts={"query": "query: ", "document": "passage: "}, truncate_dim=16,
    )  # fmt: skip


def _qwen(folder: Path) -> None:
    from sentence_transformers.sentence_transformer import modules

    _model(folder, "qwen", "decoder", lambda: modules.Pooling(32, "lasttoken"), modules.Normalize)


def _static(folder: Path) -> None:
    """No transformer at all, so none of the fast paths."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    torch.manual_seed(0)
    embedding = StaticEmbedding(_tokenizer("wordpiece").backend_tokenizer, embedding_dim=16)
    SentenceTransformer(modules=[embedding], device="cpu").save(
        str(folder / "model"), create_model_card=False
    )


MODELS: dict[str, Callable[[Path], None]] = {
    "bert-cls": _bert,
    "roberta-mean-max": _roberta,
    "mpnet-dense-prompts": _mpnet_dense,
    "qwen-last-token": _qwen,
    "static": _static,
}


TRAINING_STEPS = 60


def make_cross_encoder(
    folder: Path, *, labels: int = 1, pairs: Sequence[tuple[str, str, float]] = (), seed: int = 7
) -> Path:
    """Write a cross-encoder to `folder`, and return it: random weights, or trained on queries, texts and scores."""
    import transformers as hf
    from sentence_transformers import CrossEncoder

    torch.manual_seed(seed)
    tokenizer = _tokenizer("wordpiece")
    settings: dict[str, Any] = {"vocab_size": len(tokenizer), "num_labels": labels, **SIZES}
    config = hf.BertConfig(**settings)
    parts = folder / "parts"
    model = hf.BertForSequenceClassification(config)
    if pairs:
        _train(model, tokenizer, pairs)
    model.save_pretrained(parts)
    tokenizer.save_pretrained(parts)
    CrossEncoder(str(parts), device="cpu").save_pretrained(str(folder / "model"))
    return folder / "model"


def _train(model: Any, tokenizer: Any, pairs: Sequence[tuple[str, str, float]]) -> None:
    queries, texts, scores = zip(*pairs, strict=True)
    tokens = tokenizer(list(queries), list(texts), truncation=True, padding=True, return_tensors="pt")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(TRAINING_STEPS):
        logits = model.train()(**tokens).logits[:, 0]
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, torch.tensor(scores))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()


def make_model(kind: str, folder: Path) -> Path:
    """Write the model `kind` under `folder`, and return its own folder."""
    torch.manual_seed(7)
    MODELS[kind](folder)
    return folder / "model"
