"""Turn a dynamically quantised BERT in ONNX into a folder that sentence-transformers opens.

The in-the-box weights are int8 ONNX files, and the models that the sentence-transformers runtime is
for lie on the hub. With their weights widened to float32, the same two models run in both runtimes,
so that each proves the other.

What the files hold: an embedding table is looked up as uint8 and then dequantised, and keeps its
name; a linear layer's weight is the int8 right side of a ``MatMulInteger``, is transposed and may
be anonymous (``onnx::MatMul_1662_quantized``), but its node is named after the layer; biases and
layer norms are floats under their own names.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from safetensors.numpy import save_file

Array = NDArray[Any]

_QUANTISED = "_quantized"
_HEADS = 12
"""Attention heads: no tensor's shape tells their number, and both MiniLM and bge-small have 12."""


def dequantised_cross_encoder(source: Path, target: Path) -> Path:
    """Write a ``CrossEncoder`` folder with one logit and give it."""
    weights = dequantised_weights(source / "model.onnx")
    config = {
        **_bert_config(weights, "bert."),
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "LABEL_0"},
        "label2id": {"LABEL_0": 0},
    }
    return _write(source, target, weights, {"config.json": config})


def dequantised_embedder(source: Path, target: Path) -> Path:
    """Write a ``SentenceTransformer`` folder ([CLS] vector, normalised) and give it."""
    weights = dequantised_weights(source / "model.onnx")
    names = ("Transformer", "Pooling", "Normalize")
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": f"{index}_{name}" if index else "",
            "type": f"sentence_transformers.models.{name}",
        }
        for index, name in enumerate(names)
    ]
    config = {**_bert_config(weights, ""), "architectures": ["BertModel"]}
    pooling = {
        "word_embedding_dimension": config["hidden_size"],
        "pooling_mode_cls_token": True,
        "pooling_mode_mean_tokens": False,
    }
    files = {"config.json": config, "modules.json": modules, "1_Pooling/config.json": pooling}
    return _write(source, target, weights, files)


def dequantised_weights(path: Path) -> dict[str, Array]:
    """Read the weights as float32, under the names that transformers gives them."""
    graph = onnx.load(path).graph
    stored = {item.name: onnx.numpy_helper.to_array(item) for item in graph.initializer}
    floats = {
        name: array
        for name, array in stored.items()
        if array.dtype == np.float32 and not name.endswith("_scale")
    }
    return floats | dict(_tables(stored)) | dict(_linear_layers(graph, stored))


def _tables(stored: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
    for name in stored:
        if name.endswith(f"embeddings.weight{_QUANTISED}"):
            yield name.removesuffix(_QUANTISED), _widen(stored, name)


def _linear_layers(
    graph: onnx.GraphProto, stored: Mapping[str, Array]
) -> Iterator[tuple[str, Array]]:
    for node in graph.node:
        if node.op_type == "MatMulInteger" and node.input[1] in stored:
            # "/encoder/layer.0/output/dense/MatMul_quant" or, of the last layers, ".../Gemm_...".
            layer = node.name.strip("/").rpartition("/")[0].replace("/", ".")
            yield f"{layer}.weight", np.ascontiguousarray(_widen(stored, node.input[1]).T)


def _widen(stored: Mapping[str, Array], name: str) -> Array:
    stem = name.removesuffix(_QUANTISED)
    zero = stored[f"{stem}_zero_point"].astype(np.float32)
    widened: Array = (stored[name].astype(np.float32) - zero) * stored[f"{stem}_scale"]
    return widened


def _bert_config(weights: Mapping[str, Array], prefix: str) -> dict[str, Any]:
    vocabulary, width = weights[f"{prefix}embeddings.word_embeddings.weight"].shape
    inner = f"{prefix}encoder.layer.0.intermediate.dense.weight"
    return {
        "model_type": "bert",
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_attention_heads": _HEADS,
        "num_hidden_layers": sum(name.endswith(".intermediate.dense.bias") for name in weights),
        "intermediate_size": weights[inner].shape[0],
        "max_position_embeddings": len(weights[f"{prefix}embeddings.position_embeddings.weight"]),
        "type_vocab_size": len(weights[f"{prefix}embeddings.token_type_embeddings.weight"]),
    }


def _write(source: Path, target: Path, weights: dict[str, Array], files: Mapping[str, Any]) -> Path:
    for name, content in files.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(content, indent=2), "utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source / name, target / name)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target
