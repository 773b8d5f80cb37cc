"""Trains tiny tokenizers of the families that checkpoints use and stores what the Python package
`tokenizers` does with difficult text.

    pip install tokenizers==0.23.2
    python make_tokenizers.py

Writes tokenizers/<family>/tokenizer.json and tokenizers/<family>/cases.json beside this file.
"""

import json
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

OUT = Path(__file__).parent / "tokenizers"

CORPUS = [
    "The quick brown fox jumps over the lazy dog. The dog doesn't mind; it's asleep.",
    "Once upon a time there was a jackalope who lived between two machines and talked to both.",
    "What is the capital of Norway? The capital of Norway is Oslo, and Oslo is a city.",
    "def add(first, second):\n    return first + second\n\n\nprint(add(1, 2))\n",
    "for (int idx = 0; idx < 100; idx++) {\n\tsum += values[idx];\n}\n",
    "In 2026 there were 12345 tests, 678 benches and 90 reasons: 3.14159, 1e-9, 0x7f.",
    "Der schnelle braune Fuchs springt über den faulen Hund. Größe, Öl, Straße.",
    "El veloz murciélago hindú comía feliz cardillo y kiwi. ¿Qué tal, señor?",
    "Съешь же ещё этих мягких французских булок, да выпей чаю.",
    "敏捷的棕色狐狸跳过懒狗。東京は日本の首都です。안녕하세요 세계",
    "السلام عليكم ورحمة الله وبركاته",
    "{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\", \"days\": 3}}",
    "You are a helpful assistant.\nAnswer with one word.\nThank you! You're welcome!",
]

SAMPLES = [
    "",
    " ",
    "Hello, world!",
    " Hello  world   with    spaces ",
    "\n\n\n",
    "\t tab\tand \r\n line\r\n\r\nends  \n \n",
    "The fox's DON'T we'll I'M they'Re",
    "1 12 123 1234 12345 3.14 1,000,000 ٣٤٥ ½ Ⅷ",
    "über Größe Straße naïve café",
    "cafe\u0301 A\u030a \u1e9b\u0323 ﬁ",
    "Привет, мир! Ещё чаю?",
    "東京は日本の首都です。你好，世界！안녕하세요",
    "مرحبا بالعالم שלום עולם",
    "नमस्ते दुनिया हिन्दी",
    "😀😃 👩‍👩‍👧‍👦 🏳️‍🌈 🇳🇴 👍🏽 ☃",
    "a😀b 😀 c",
    "def f(x):\n    if x:\n\t\treturn  x**2  # ok\n",
    "https://example.com/a?b=c&d=%20#e_f-g",
    "\u00a0nbsp\u2003em\u3000wide\u200bzero\ufeffbom",
    "\u0000\u0001\u001b[0m\u007f\u0080",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0001f9ff\U000e0041",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "                                                            x",
    "<|im_start|>user\nHi<|im_end|>\n<s> </s><|begin_of_text|>x<|eot_id|>",
    "<0x41><0xE4> ▁ ▁▁under_score▁",
    "{\"a\": [1, 2.5, null, true], \"b\": \"\\u00e9\\n\"}",
    "...!!!??? -- —– “quoted” ‘single’ «guillemets»",
    "ALLCAPS CamelCase snake_case kebab-case x2y3",
]

# The split of cl100k, which Llama 3 uses, and Qwen 2's, which takes digits one by one.
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def train(tokenizer, vocab_size, specials, **options):
    alphabet = pre_tokenizers.ByteLevel.alphabet() if options.pop("byte_level", True) else []
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False, **options
    )
    tokenizer.train_from_iterator(CORPUS * 4, trainer)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in specials])
    return tokenizer


def gpt2():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return train(tokenizer, 700, ["<|endoftext|>"])


def llama3():
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    split = Regex(SPLIT.format(digits=r"\p{N}{1,3}"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(split, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    train(tokenizer, 700, ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"])
    bos = "<|begin_of_text|>"
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single=f"{bos} $A",
                pair=f"{bos} $A {bos}:1 $B:1",
                special_tokens=[(bos, tokenizer.token_to_id(bos))],
            ),
        ]
    )
    return tokenizer


def qwen():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = Regex(SPLIT.format(digits=r"\p{N}"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(split, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    train(tokenizer, 700, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    plain = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in plain])
    return tokenizer


def sentencepiece_bpe():
    """BPE over text whose spaces are U+2581, as SentencePiece models are converted: specials,
    then the 256 byte tokens, then the pieces."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    train(trained, 500, [], byte_level=False)
    model = json.loads(trained.to_str())["model"]
    vocab = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    # Rare letters are left to the bytes.
    rare = {piece for piece in model["vocab"] if len(piece) == 1 and ord(piece) > 0x2000 and piece != "▁"}
    vocab += [piece for piece in model["vocab"] if not rare & set(piece)]
    merges = [tuple(pair) for pair in model["merges"] if not rare & set("".join(pair))]
    ids = {piece: idx for idx, piece in enumerate(vocab)}
    bpe = models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(bpe)
    tokenizer.add_special_tokens(
        [AddedToken(text, normalized=False) for text in ["<unk>", "<s>", "</s>"]]
    )
    bos = tokenizer.token_to_id("<s>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", bos)]
    )
    return tokenizer


def llama2():
    tokenizer = sentencepiece_bpe()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return tokenizer


def gemma():
    tokenizer = sentencepiece_bpe()
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


def main():
    for build in [gpt2, llama3, qwen, llama2, gemma]:
        folder = OUT / build.__name__
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = build()
        written = json.loads(tokenizer.to_str())
        text = json.dumps(written, ensure_ascii=False, separators=(",", ":"))
        (folder / "tokenizer.json").write_text(text + "\n", encoding="utf-8")
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        cases = []
        for sample in SAMPLES:
            ids = tokenizer.encode(sample, add_special_tokens=False).ids
            cases.append(
                {
                    "text": sample,
                    "ids": ids,
                    "ids_with_specials": tokenizer.encode(sample).ids,
                    "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                    "decoded_without_specials": tokenizer.decode(ids, skip_special_tokens=True),
                }
            )
        lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
        (folder / "cases.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
