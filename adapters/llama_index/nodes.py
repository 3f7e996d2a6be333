"""Nodes of LlamaIndex as datapoints, and back: every kind of node comes back as it was, but for its embedding.

A node's text is the datapoint's text, so that words find it, and its metadata are attributes, so that filters see them.
The payload has the node as LlamaIndex serialises it, without text and embedding.
"""

from __future__ import annotations

from typing import Any

from llama_index.core.schema import BaseNode, MetadataMode, TextNode
from llama_index.core.vector_stores.utils import metadata_dict_to_node, node_to_metadata_dict

from scannery.adapters.attributes import to_attributes, to_metadata
from scannery.adapters.llama_index.filters import REF_DOC_ID
from scannery.client import Datapoint, NewDatapoint

__all__ = ["node_of", "point_of"]

_CONTENT, _TYPE = "_node_content", "_node_type"
_OWN = (_CONTENT, _TYPE, "document_id", "doc_id", REF_DOC_ID)


def point_of(node: BaseNode, *, embedded: bool) -> NewDatapoint:
    """Return the datapoint of a node.

    Args:
        node: it is not changed.
        embedded: whether the node's embedding is its vector; else the index encodes its text.

    """
    known = node_to_metadata_dict(node, remove_text=True, flat_metadata=False)
    attributes = to_attributes({key: value for key, value in known.items() if key not in _OWN})
    point: NewDatapoint = {
        "id": node.node_id,
        "attributes": attributes,
        "payload": {_CONTENT: known[_CONTENT], _TYPE: known[_TYPE]},
    }
    if text := node.get_content(metadata_mode=MetadataMode.NONE):
        point["text"] = text
    if node.ref_doc_id:
        point["document_id"] = node.ref_doc_id
        attributes[REF_DOC_ID] = node.ref_doc_id
    if embedded and node.embedding is not None:
        point["vector"] = node.embedding
    return point


def node_of(point: Datapoint) -> BaseNode:
    """Return the node of a datapoint; of one that no node was made into, a node with its text and attributes."""
    payload: Any = point.payload
    if isinstance(payload, dict) and isinstance(payload.get(_CONTENT), str):
        return metadata_dict_to_node(payload, text=point.text)
    metadata = to_metadata(point.attributes)
    if point.title is not None:
        metadata.setdefault("title", point.title)
    return TextNode(id_=point.id, text=point.text or "", metadata=metadata)
