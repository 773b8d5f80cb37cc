"""Writes tiny vocabularies in the formats of Kimi (`tiktoken.model`) and Mistral (`tekken.json`), and
what the Python packages `tiktoken`, which Kimi's code uses, and `mistral_common` do with difficult text.

    pip install tiktoken==0.12.0 tokenizers==0.23.2 mistral_common==1.13.1
    python make_byte_pairs.py

Writes tokenizers/kimi, tokenizers/tekken and tokenizers/tekken_v3 beside this file.
"""

import base64
import json
import random

import tiktoken
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy, SpecialTokens
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
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


TOOL = dict(
    type="function",
    function=dict(
        name="weather",
        description="The weather of a city",
        parameters=dict(type="object", properties=dict(city=dict(type="string"))),
    ),
)
CALL = dict(id="abcdefghi", type="function", function=dict(name="weather", arguments='{"city": "Troms\u00f8"}'))


def message(role, content, **more):
    return dict(role=role, content=content, **more)


def conversations(has_system):
    """Conversations, in which messages write control tokens too, which are plain text there."""
    user = message("user", TEXTS[2])
    yield dict(messages=[user])
    yield dict(messages=[message("user", "a[INST] b [/INST]</s><s>[TOOL_CALLS]"), message("assistant", "[IMG]  \n\n"), user])
    if has_system:
        yield dict(messages=[message("system", "[/SYSTEM_PROMPT] Be brief. "), message("user", " \U0001f600 12345\n")])
    called = message("assistant", "", tool_calls=[CALL])
    result = message("tool", '{"degrees": -3.5}', name="weather", tool_call_id="abcdefghi")
    yield dict(messages=[message("user", "Weather in Troms\u00f8?"), called, result], tools=[TOOL])


def tekken(name, num_tokens, num_kept, num_special, version, names):
    """A vocabulary of which only the first `num_kept` tokens are within the size that the configuration states.
    Without `names`, the special tokens are those that mistral_common knows for old versions."""
    vocab = [
        dict(rank=rank, token_bytes=base64.b64encode(token).decode(), token_str=None)
        for token, rank in trained(num_tokens).items()
    ]
    config = dict(
        pattern=TEKKEN,
        num_vocab_tokens=len(vocab),
        default_vocab_size=num_special + num_kept,
        default_num_special_tokens=num_special,
        version=version,
    )
    special = [dict(rank=idx, token_str=str(text), is_control=True) for idx, text in enumerate(names or [])]
    data = dict(config=config, vocab=vocab) | (dict(special_tokens=special) if names else {})
    write(name, {"tekken.json": json.dumps(data)}, [])
    mistral = MistralTokenizer.from_file(str(OUT / name / "tekken.json"))
    tekkenizer = mistral.instruct_tokenizer.tokenizer

    def entry(ids):
        text = tekkenizer.decode(ids, SpecialTokenPolicy.KEEP)
        plain = tekkenizer.decode(ids, SpecialTokenPolicy.IGNORE)
        return dict(text=text, ids=ids, ids_with_specials=ids, decoded=text, decoded_without_specials=plain)

    known = [tekkenizer.id_to_piece(idx) for idx in range(num_special)]
    texts = [text for text in TEXTS if not any(token in text for token in known)]
    cases = [entry(tekkenizer.encode(text, False, False)) for text in texts]
    chats = []
    for chat in conversations(version != "v3"):
        ids = mistral.encode_chat_completion(ChatCompletionRequest(**chat)).tokens
        chats.append(dict(messages=chat["messages"], ids=ids))
        if "tools" in chat:
            # No message writes a control token, so the whole text has the same tokens.
            cases.append(entry(ids))
    # Mostly single bytes, which seldom make up characters.
    rng = random.Random(1)
    bounds = [num_special, num_special + 256, num_special + num_kept]
    answers = [[rng.randrange(rng.choice(bounds)) for _ in range(40)] for _ in range(12)]
    answers = [dict(ids=ids, decoded=tekkenizer.decode(ids, SpecialTokenPolicy.KEEP)) for ids in answers]
    more = dict(
        special=known,
        vocab_size=tekkenizer.n_words,
        conversations=[chat for chat in chats if not any("tool_calls" in it for it in chat["messages"])],
        answers=answers,
    )
    files = {"tekken.json": json.dumps(data), "more.json": json.dumps(more, indent=1)}
    write(name, files, cases)


kimi()
tekken("tekken", 600, 580, 40, "v13", list(SpecialTokens))
tekken("tekken_v3", 320, 300, 24, "v3", None)
