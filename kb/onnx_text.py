"""Run a BERT-like ONNX model on text: the base of the in-the-box embedder and cross-encoder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kb.errors import ModelError

if TYPE_CHECKING:
    from onnxruntime import InferenceSession
    from tokenizers import Tokenizer


class OnnxTextModel:
    """A tokenizer and a session. Safe to call from several threads: nothing changes after init.

    One input is run at a time, unpadded. The int8 weights are quantised dynamically, with one scale
    a tensor, so that in a batch each text would change its neighbours' results (8.87 became 9.02
    for the reference pair), and on a CPU a batch is no faster (36-38 ms a pair at 1, 4 and 8).

    Raises:
        ModelError: a file is missing or cannot be loaded.
    """

    def __init__(self, folder: Path, max_tokens: int, threads: int) -> None:
        self.max_tokens = max_tokens
        self._tokenizer = _load_tokenizer(folder / "tokenizer.json")
        self._session = _load_session(folder / "model.onnx", threads)
        self._inputs = frozenset(item.name for item in self._session.get_inputs())
        self._cls = _special_id(self._tokenizer, "[CLS]")
        self._sep = _special_id(self._tokenizer, "[SEP]")

    def token_ids(self, text: str) -> list[int]:
        """Tokenise without special tokens and without a limit."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def frame(self, first: Sequence[int], second: Sequence[int] | None = None) -> list[int]:
        """Put the special tokens around one or two token sequences."""
        ids = [self._cls, *first, self._sep]
        return ids if second is None else [*ids, *second, self._sep]

    def run(self, ids: Sequence[int], first_length: int | None = None) -> NDArray[Any]:
        """Run the model on one framed input and give its first output, batch axis dropped.

        ``first_length`` counts the tokens (with theirs specials) of the first of two texts.
        """
        row = np.asarray([ids], dtype=np.int64)
        types = np.zeros_like(row)
        if first_length is not None:
            types[0, first_length:] = 1
        feeds = {"input_ids": row, "attention_mask": np.ones_like(row), "token_type_ids": types}
        outputs = self._session.run(
            None, {name: value for name, value in feeds.items() if name in self._inputs}
        )
        result: NDArray[Any] = np.asarray(outputs[0])[0]
        return result


def _load_tokenizer(path: Path) -> Tokenizer:
    from tokenizers import Tokenizer

    if not path.is_file():
        raise ModelError(f"{path} is missing")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # The tokenizers library raises Exception itself.
        raise ModelError(f"{path} cannot be loaded: {error}") from error
    # The files pad every text to 512 tokens, and each call would pay for 512.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _load_session(path: Path, threads: int) -> InferenceSession:
    import onnxruntime

    if not path.is_file():
        raise ModelError(f"{path} is missing")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Spinning threads would take the cores of the other replicas while they wait.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(
            str(path), sess_options=options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's errors share no base class of their own.
        raise ModelError(f"{path} cannot be loaded: {type(error).__name__}") from error


def _special_id(tokenizer: Tokenizer, token: str) -> int:
    found: int | None = tokenizer.token_to_id(token)
    if found is None:
        raise ModelError(f"the tokenizer has no {token} token")
    return found
