"""What a tool is: a model of its arguments, whose docstrings describe it to callers, and a call or two of the SDK."""

from __future__ import annotations

import inspect
import json
from abc import abstractmethod
from typing import Annotated, Any, ClassVar

from mcp_types import Tool as ToolDescription
from mcp_types import ToolAnnotations
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from scannery.bridges.mcp.answers import Answer
from scannery.bridges.mcp.texts import cut, quoted
from scannery.client.aio import AsyncClient

__all__ = ["IndexName", "TokenBudget", "Tool", "Where", "argument_errors"]

MAX_TOKENS = 20_000
"""Most tokens of an answer; it is sent twice, as fields and as a text."""


def _parsed(value: Any) -> Any:
    # Some models send an object as a text of JSON.
    if isinstance(value, str):
        try:
            return json.loads(value)
        except (ValueError, RecursionError) as error:
            raise ValueError("must be a JSON object") from error
    return value


IndexName = Annotated[str, Field(description="Name of the index, as `list_indexes` returns it.")]
Where = Annotated[
    dict[str, Any] | None,
    BeforeValidator(_parsed),
    Field(
        description='Filter as a JSON object: {"show": "gotime", "year": {"$gte": 2020}}. Keys are attributes of the '
        "index, `document_id` or `id`; a bare value means equal. Operators: $eq $ne $gt $gte $lt $lte $in $nin $exists "
        "and $and, $or (lists of filters), $not. Times are texts in ISO 8601. Default: everything is allowed."
    ),
]
TokenBudget = Annotated[
    int,
    Field(
        ge=100,
        le=MAX_TOKENS,
        description="Tokens that texts and attributes of the answer may take; the answer says what was left out.",
    ),
]


class Tool(BaseModel):
    """A call of a tool: its arguments, and what it answers."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    name: ClassVar[str]
    """Name by which callers call it."""
    answer: ClassVar[type[Answer]]
    """Kind of its answer."""

    @abstractmethod
    async def call(self, client: AsyncClient) -> Answer:
        """Return the answer; raises a ScanneryError."""

    @classmethod
    def description(cls) -> ToolDescription:
        """Return what callers read about the tool."""
        arguments = cls.model_json_schema()
        arguments.pop("description")
        return ToolDescription(
            name=cls.name,
            description=inspect.cleandoc(cls.__doc__ or ""),
            input_schema=arguments,
            output_schema=cls.answer.model_json_schema(mode="serialization"),
            annotations=ToolAnnotations(
                read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
            ),
        )


def argument_errors(tool: type[Tool], error: ValidationError) -> str:
    """Return what is wrong with the arguments of a call, each with the name of the argument and what is allowed."""
    lines = []
    for detail in error.errors(include_url=False, include_context=False)[:5]:
        field = ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "extra_forbidden":
            lines.append(
                f"{cut(quoted(field), 80)} is no argument; there are: {', '.join(tool.model_fields)}"
            )
        else:
            lines.append(f"{field}: {detail['msg']}, got {cut(quoted(detail['input']), 80)}")
    return "; ".join(lines)
