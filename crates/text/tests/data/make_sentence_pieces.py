"""Writes tiny vocabularies of SentencePiece (`tokenizer.model`) as families of models have them, and
what the Python package `sentencepiece` does with difficult and with random text.

    pip install sentencepiece==0.2.3 tokenizers==0.23.2
    python make_sentence_pieces.py

Writes tokenizers/sp_* beside this file.
"""

import json
import random

import sentencepiece as spm

from make_tokenizers import CORPUS, OUT, SAMPLES

COMMON = dict(
    vocab_size=600,
    character_coverage=0.98,
    unk_id=0,
    bos_id=1,
    eos_id=2,
    normalization_rule_name="identity",
    remove_extra_whitespaces=False,
    allow_whitespace_only_pieces=True,
    split_digits=True,
    minloglevel=2,
    hard_vocab_limit=False,
    num_threads=1,
)
RUNS = ["\u2581" * length for length in (2, 3, 4, 8)] + ["\n", "\n\n", "\t"]
TAGS = ["<start_of_turn>", "<end_of_turn>", "<table>", "</table>", "[UNUSED_TOKEN_1]"]

# As Llama 2, Gemma, InternLM2; then unigrams with rules for characters, and with bytes.
FAMILIES = dict(
    sp_llama=dict(model_type="bpe", byte_fallback=True),
    sp_gemma=dict(
        model_type="bpe", byte_fallback=True, add_dummy_prefix=False, user_defined_symbols=RUNS + TAGS
    ),
    sp_internlm=dict(model_type="bpe", byte_fallback=True, user_defined_symbols=TAGS + RUNS[:2]),
    sp_unigram=dict(model_type="unigram", remove_extra_whitespaces=True),
    sp_unigram_bytes=dict(model_type="unigram", byte_fallback=True, user_defined_symbols=TAGS[:3]),
)

# Replacements of one or two characters: a precomposed letter, a ligature, a wide digit, a tab.
RULES = "0065 0301\t00E9\nFB01\t0066 0069\nFF11\t0031\n9\t20\n"

PARTS = [
    *"aeinorst .,;:!?'\"-<>/[]{}()=+*#@&%$^~`|_\\",
    *"0123456789",
    " ",
    "  ",
    "   ",
    "        ",
    "\n",
    "\n\n",
    "\t",
    "\r\n",
    "\u2581",
    "é",
    "e\u0301",
    "ﬁ",
    "１",
    "漢字",
    "あ",
    "Ω",
    "😀",
    "👩‍👩‍👧",
    "\u200b",
    "\u00a0",
    "\ufeff",
    "\ue000",
    "<0x41>",
    "<0x0A>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<table>",
    "</table>",
    "[UNUSED_TOKEN_1]",
    "the",
    "and",
    "ing",
    " world",
    "Hello",
    "def",
    "return",
    "aaaaaa",
    "abababab",
]


def texts():
    rng = random.Random(7)
    found = [*SAMPLES, *PARTS, *(f" {part} " for part in PARTS), *(part * 5 for part in PARTS)]
    found += ["".join(rng.choices(PARTS, k=rng.randint(1, 25))) for _ in range(120)]
    words = " ".join(CORPUS).split()
    found += [" ".join(rng.choices(words, k=rng.randint(1, 12))) for _ in range(30)]
    return [text for text in dict.fromkeys(found) if not any(name in text for name in ("<s>", "</s>", "<unk>"))]


def main():
    corpus = [line for text in CORPUS for line in text.split("\n") if line] * 4
    for family, own in FAMILIES.items():
        folder = OUT / family
        folder.mkdir(parents=True, exist_ok=True)
        if family == "sp_unigram":
            rules = folder / "rules.tsv"
            rules.write_text(RULES)
            own = own | dict(normalization_rule_tsv=str(rules), normalization_rule_name="")
        spm.SentencePieceTrainer.train(
            sentence_iterator=iter(corpus), model_prefix=str(folder / "tokenizer"), **(COMMON | own)
        )
        (folder / "tokenizer.vocab").unlink()
        if family == "sp_unigram":
            rules.unlink()
        model = spm.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
        cases = []
        for text in texts():
            ids = model.encode(text)
            # An unknown piece has no text of its own.
            decoded = None if 0 in ids else model.decode(ids)
            cases.append(dict(text=text, ids=ids, decoded=decoded))
        text = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
        (folder / "cases.json").write_text(f"[\n{text}\n]\n")
        config = dict(bos_token="<s>", eos_token="</s>", unk_token="<unk>", add_bos_token=True)
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n")
        print(family, model.vocab_size(), len(cases), sum(0 in case["ids"] for case in cases))


main()
