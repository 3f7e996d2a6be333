"""Attention masks that are applied without a look at their values.

By default transformers asks whether a mask is all ones, in order to leave it out. On an accelerator this question waits
for the device, once for each batch, and a static graph cannot contain it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from scannery.embed.library_imports import quiet

__all__ = ["use_static_masks"]

STATIC, STATIC_EAGER = "scannery_static", "scannery_static_eager"


def use_static_masks(model: Any) -> None:
    """Make a model of sentence-transformers apply every mask that it gets; without one it attends to all tokens.

    Args:
        model: its modules; others than those of transformers are left as they are.

    """
    for module in model:
        if hasattr(module, "_exclude_prompt_from_mask"):
            module._exclude_prompt_from_mask = _without_prompt
    transformer = getattr(model[0], "auto_model", None)
    if transformer is None:
        return
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import eager_mask, sdpa_mask

    AttentionInterface.register(STATIC, sdpa_attention_forward)
    AttentionMaskInterface.register(STATIC, partial(_whole_mask, sdpa_mask))
    AttentionMaskInterface.register(STATIC_EAGER, partial(_whole_mask, eager_mask))
    with quiet():
        transformer.set_attn_implementation(STATIC)
    if transformer.config._attn_implementation != STATIC:
        # A model with its own attention code reads this setting only to make masks.
        transformer.config._attn_implementation = STATIC_EAGER


def _whole_mask(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if kwargs.get("attention_mask") is not None:
        kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    return make(*args, **kwargs)


def _without_prompt(mask_BT: Any, prompt_length: int) -> Any:
    """Return the mask without the tokens of the prompt, behind the padding of a left-padded text."""
    import torch

    padding_B1 = mask_BT.to(torch.int32).argmax(dim=1, keepdim=True)
    positions_1T = torch.arange(mask_BT.size(1), device=mask_BT.device).unsqueeze(0)
    return mask_BT * (positions_1T >= padding_B1 + prompt_length).to(mask_BT.dtype)
