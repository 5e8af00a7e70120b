from __future__ import annotations

from beem_plugin.data import TextEncoder, Vocabulary
from beem_plugin.dataset_readers.conll import ConllReader


def test_each_tag_stands_at_its_word_also_after_a_word_without_tokens(encoder: TextEncoder) -> None:
    reader = ConllReader(encoder, ["O", "A", "B"])
    blank = "\u00a0"  # the tokenizer drops it
    instance = reader.text_to_instance(words=["good", blank, "film", "film"], tags=["A", "O", "B", "O"])
    batch = reader.collator(Vocabulary(["O", "A", "B"]), 0)([instance], [0])
    assert encoder.tokenizer.convert_ids_to_tokens(instance.encoding["input_ids"])[1:4] == ["good", "[UNK]", "film"]
    assert batch["label"].tolist() == [[-1, 1, 0, 2, 0, -1]]
    assert batch["words"].tolist() == [[0, 1, 1, 1, 1, 0]]
