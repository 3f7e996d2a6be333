"""Changes to a model so that its graph does not depend on the values of a mask, as XLA's static graphs cannot."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from scannery.embed.library_output import quiet

__all__ = ["always_mask", "pool_statically"]

STATIC, STATIC_EAGER = "scannery_static", "scannery_static_eager"


def always_mask(model: Any) -> None:
    """Make the transformer apply its attention mask in any case.

    Usually it leaves out a mask of all ones. A static graph cannot depend on the values of a mask.
    """
    transformer = getattr(model[0], "auto_model", None)
    if transformer is None:
        return
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from transformers.masking_utils import eager_mask, sdpa_mask

    AttentionInterface.register(STATIC, sdpa_attention_forward)
    AttentionMaskInterface.register(STATIC, partial(_full_mask, sdpa_mask))
    AttentionMaskInterface.register(STATIC_EAGER, partial(_full_mask, eager_mask))
    with quiet():
        transformer.set_attn_implementation(STATIC)
    if transformer.config._attn_implementation != STATIC:
        # A model with its own attention code reads this setting only to make masks.
        transformer.config._attn_implementation = STATIC_EAGER


def pool_statically(model: Any) -> None:
    """Make pooling leave out prompts by tensor operations alone: a static graph cannot read values of a mask."""
    for module in model:
        if hasattr(module, "_exclude_prompt_from_mask"):
            module._exclude_prompt_from_mask = _without_prompt


def _without_prompt(mask_BT: Any, prompt_length: int) -> Any:
    import torch

    padding_B1 = mask_BT.to(torch.int32).argmax(dim=1, keepdim=True)
    positions_1T = torch.arange(mask_BT.size(1), device=mask_BT.device).unsqueeze(0)
    return mask_BT * (positions_1T >= padding_B1 + prompt_length).to(mask_BT.dtype)


def _full_mask(make: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return make(*args, **kwargs | {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
