"""The sentence encoder all-MiniLM-L6-v2, judged by how well it tells which news items are alike.

Truth: the mean of people's judgements on all pairs of Lee's 50 news items (gensim's test data), by Pearson correlation.
Likeness to float: cosine of the embeddings of the same items and of 200 sentences of film reviews. Calibrated on Lee's
*background* news items, none of which is judged. Texts come in small padded batches, as such encoders are served, so
the attention mask takes both its values in calibration and in evaluation.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from benchmarks.fetch import MINILM_FOLDER, MINILM_WEIGHTS, TEXTS, exported, fetch
from benchmarks.statistics import Figure, bootstrap
from benchmarks.workloads.base import Array, Feed, Outputs, Workload

MOST_TOKENS = 256
BATCH = 5
CALIBRATION_NEWS = 40
CALIBRATION_SENTENCES = 60
FITTING_NEWS = 120
FITTING_SENTENCES = 180
LATENCY_TOKENS = 128


class Minilm(Workload):
    """Texts; the first 50 rows are embeddings of Lee's news items, the rest of film reviews."""

    name = "minilm"
    metric = "Pearson with people's judgement"
    likeness = "mean cosine with float embedding"
    channel_axis = 1

    @property
    def model_path(self) -> Path:
        """The export made by ``models/makers/minilm.py``."""
        return exported(self.name)

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.from_file(str(fetch(MINILM_WEIGHTS) / MINILM_FOLDER / "tokenizer.json"))
        tokenizer.enable_truncation(MOST_TOKENS)
        tokenizer.enable_padding()
        return tokenizer

    @cached_property
    def _news(self) -> list[str]:
        return _lines("lee.cor")

    @cached_property
    def _background(self) -> list[str]:
        judged = set(self._news)
        return [text for text in _lines("lee_background.cor") if text not in judged]

    @cached_property
    def _judgements(self) -> Array:
        # Upper triangle filled, lower triangle zero.
        return np.loadtxt(_data("similarities0-1.txt"))

    def calibration_feeds(self) -> list[Feed]:
        """Return whole background news items and single sentences of others, in small padded batches."""
        return self._items_and_sentences(CALIBRATION_NEWS, CALIBRATION_SENTENCES)

    def fitting_feeds(self) -> list[Feed]:
        """Return more of them, some 28,000 tokens: layers of 1536 columns are fitted to them."""
        return self._items_and_sentences(FITTING_NEWS, FITTING_SENTENCES)

    def _items_and_sentences(self, items: int, sentences: int) -> list[Feed]:
        firsts = [text.split(". ", 1)[0] for text in self._background[items:]]
        return self._feeds(self._background[:items] + firsts[:sentences])

    def evaluation_feeds(self) -> list[Feed]:
        """Return the news items, then the reviews, in small padded batches."""
        reviews = [line.split(" ", 1)[1] for line in _lines("pang_lee_polarity.cor")]
        return self._feeds(self._news + reviews[: 20 if self.quick else None])

    def latency_feed(self) -> Feed:
        """Return one news text of exactly 128 tokens."""
        text = " ".join(self._news)
        encoding = self._tokenizer.encode(text)
        return {
            "input_ids": np.array([encoding.ids[:LATENCY_TOKENS]], np.int64),
            "attention_mask": np.ones((1, LATENCY_TOKENS), np.int64),
        }

    def decode(self, outputs: Outputs, feed: Feed) -> Array:
        """Return unit embeddings: the mean over the tokens that are not padding."""
        mask = feed["attention_mask"][:, :, None].astype(np.float32)
        means = (outputs[0] * mask).sum(axis=1) / mask.sum(axis=1)
        return means / np.linalg.norm(means, axis=1, keepdims=True)

    def signal(self, outputs: Outputs, feed: Feed) -> Array:
        """Return the hidden states of the tokens that are not padding, [tokens, 384]."""
        return outputs[0][feed["attention_mask"] == 1]

    def score_rows(self, rows: Array) -> Figure:
        """Return the correlation over all pairs of news items; the interval resamples items, not pairs."""
        return self._figure(lambda chosen: self._pearson(rows, chosen))

    def difference_rows(self, rows: Array, reference: Array) -> Figure:
        """Return the difference of the correlations on the same items."""
        return self._figure(lambda chosen: self._pearson(rows, chosen) - self._pearson(reference, chosen))

    def agreement_rows(self, rows: Array, reference: Array) -> Figure:
        """Return the mean cosine between the two embeddings of each text."""
        cosines = (rows * reference).sum(axis=1)
        low, high = bootstrap(len(cosines), lambda chosen: float(cosines[chosen].mean()))
        return Figure(float(cosines.mean()), low, high, len(cosines))

    def _figure(self, statistic: Callable[[Array], float]) -> Figure:
        n = len(self._news)
        return Figure(statistic(np.arange(n)), *bootstrap(n, statistic), n)

    def _pearson(self, rows: Array, chosen: Array) -> float:
        first, second = np.triu_indices(len(chosen), k=1)
        low, high = np.minimum(chosen[first], chosen[second]), np.maximum(chosen[first], chosen[second])
        # A resample holds some items twice; an item's likeness to itself is no judgement.
        pairs = low != high
        low, high = low[pairs], high[pairs]
        ours = (rows[low] * rows[high]).sum(axis=1)
        return float(np.corrcoef(ours, self._judgements[low, high])[0, 1])

    def _feeds(self, texts: list[str]) -> list[Feed]:
        return [self._feed(texts[start : start + BATCH]) for start in range(0, len(texts), BATCH)]

    def _feed(self, texts: list[str]) -> Feed:
        encodings = self._tokenizer.encode_batch(texts)
        return {
            "input_ids": np.array([encoding.ids for encoding in encodings], np.int64),
            "attention_mask": np.array([encoding.attention_mask for encoding in encodings], np.int64),
        }


def _data(name: str) -> Path:
    """Return one file of gensim's test data."""
    return fetch(TEXTS) / "gensim/test/test_data" / name


def _lines(name: str) -> list[str]:
    """Read a corpus of one text a line."""
    return _data(name).read_text(encoding="latin-1").strip().split("\n")
