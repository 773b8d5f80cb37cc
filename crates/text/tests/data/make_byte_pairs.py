"""Writes tiny vocabularies in the formats of Kimi (`tiktoken.model`) and Mistral (`tekken.json`), and
what the Python package `tiktoken`, which both use, does with difficult text.

    pip install tiktoken==0.12.0 tokenizers==0.23.2
    python make_byte_pairs.py

Writes tokenizers/kimi and tokenizers/tekken beside this file.
"""

import base64
import json

import tiktoken
from tiktoken._educational import bpe_train

from make_tokenizers import CORPUS, OUT, SAMPLES, SPLIT

# As in tokenization_kimi.py of Kimi's checkpoints.
KIMI = "|".join(
    [
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)

# As in tekken.json of Mistral's checkpoints.
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TEXTS = [*SAMPLES, "漢字かな交じり文 and 汉字。Ünïcödé'S I'LL", "x[BOS]y<|im_end|> <|reserved_token_820|>"]


def trained(num_tokens):
    return bpe_train("\n".join(CORPUS * 4), num_tokens, SPLIT.format(digits=r"\p{N}"), None)


def write(family, files, cases):
    folder = OUT / family
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    text = ",\n".join(json.dumps(case, ensure_ascii=True) for case in cases)
    (folder / "cases.json").write_text(f"[\n{text}\n]\n")


def case(encoding, text, ids, shift, special):
    plain = [idx for idx in ids if idx not in special]
    return dict(
        text=text,
        ids=[idx + shift for idx in ids],
        ids_with_specials=[idx + shift for idx in ids],
        decoded=encoding.decode(ids),
        decoded_without_specials=encoding.decode(plain),
    )


def kimi():
    ranks = trained(700)
    listed = {700: "[BOS]", 701: "[EOS]", 702: "<|im_end|>", 703: "<|im_user|>", 710: "[PAD]"}
    special = {listed.get(idx, f"<|reserved_token_{idx}|>"): idx for idx in range(700, 956)}
    encoding = tiktoken.Encoding(
        "kimi", pat_str=KIMI, mergeable_ranks=ranks, special_tokens=special
    )
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())
    fields = dict(lstrip=False, normalized=False, rstrip=False, single_word=False, special=True)
    config = dict(
        added_tokens_decoder={str(idx): dict(content=text, **fields) for idx, text in listed.items()},
        bos_token="[BOS]",
        eos_token="[EOS]",
        tokenizer_class="TikTokenTokenizer",
    )
    files = {"tiktoken.model": "".join(lines), "tokenizer_config.json": json.dumps(config, indent=1)}
    ids = set(special.values())
    cases = (case(encoding, text, encoding.encode(text, allowed_special="all"), 0, ids) for text in TEXTS)
    write("kimi", files, cases)


def tekken():
    ranks, num_special = trained(600), 20
    encoding = tiktoken.Encoding("tekken", pat_str=TEKKEN, mergeable_ranks=ranks, special_tokens={})
    vocab = [
        dict(rank=rank, token_bytes=base64.b64encode(token).decode(), token_str=None)
        for token, rank in ranks.items()
    ]
    # The last tokens are beyond the size that the configuration states.
    kept = {token: rank for token, rank in ranks.items() if rank < 580}
    encoding = tiktoken.Encoding("tekken", pat_str=TEKKEN, mergeable_ranks=kept, special_tokens={})
    names = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    special = [dict(rank=idx, token_str=name, is_control=True) for idx, name in enumerate(names)]
    config = dict(
        pattern=TEKKEN,
        num_vocab_tokens=len(vocab),
        default_vocab_size=num_special + len(kept),
        default_num_special_tokens=num_special,
        version="v7",
    )
    data = dict(config=config, vocab=vocab, special_tokens=special)
    texts = [text for text in TEXTS if not any(name in text for name in names)]
    cases = (case(encoding, text, encoding.encode(text), num_special, ()) for text in texts)
    write("tekken", {"tekken.json": json.dumps(data)}, cases)


kimi()
tekken()
