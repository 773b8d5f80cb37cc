"""The chat template, the tokenizer, and conversations as tokens: the same text in training and in use."""

import json
from pathlib import Path

import jinja2
import jinja2.ext
import jinja2.sandbox
import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

TEMPLATE = (Path(__file__).parent / "chat_template.jinja").read_text()
END_OF_TEXT, IM_START, IM_END = 0, 1, 2
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
# Tokens of their own, yet part of the text, as in Qwen3: a client must see them.
TEXT_TOKENS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
# Qwen3's rule for where words part: every digit is a token.
WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def _template() -> jinja2.Template:
    """The environment that transformers renders chat templates in."""
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(TEMPLATE)


_CHAT = _template()


def render(conversation: dict, add_generation_prompt: bool = False) -> str:
    return _CHAT.render(messages=conversation["messages"], tools=conversation["tools"], add_generation_prompt=add_generation_prompt)


def train_tokenizer(texts, vocab_size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])
    tokenizer.decoder = decoders.ByteLevel()
    names = SPECIAL_TOKENS + TEXT_TOKENS
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=names, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    # The trainer marks all added tokens special; say again which are.
    tokenizer_json = json.loads(tokenizer.to_str())
    for token in tokenizer_json["added_tokens"]:
        token["special"] = token["content"] in SPECIAL_TOKENS
    return Tokenizer.from_str(json.dumps(tokenizer_json))


def tokens_and_mask(tokenizer: Tokenizer, conversation: dict) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, 1 where the model speaks: its words and the `<|im_end|>` after them)."""
    ids = np.array(tokenizer.encode(render(conversation), add_special_tokens=False).ids, np.int32)
    return ids, speaks(tokenizer, ids)


def speaks(tokenizer: Tokenizer, ids: np.ndarray) -> np.ndarray:
    header = np.array([IM_START, *tokenizer.encode("assistant\n", add_special_tokens=False).ids])
    mask = np.zeros(len(ids), np.uint8)
    for start in np.flatnonzero(ids == IM_START):
        body = start + len(header)
        if np.array_equal(ids[start:body], header):
            end = body + np.flatnonzero(ids[body:] == IM_END)[0]
            mask[body:end + 1] = 1
    return mask


def hub_config() -> dict:
    """tokenizer_config.json."""
    added = {str(i): {"content": name, "lstrip": False, "normalized": False, "rstrip": False, "single_word": False,
                      "special": name in SPECIAL_TOKENS} for i, name in enumerate(SPECIAL_TOKENS + TEXT_TOKENS)}
    return {"add_bos_token": False, "add_prefix_space": False, "added_tokens_decoder": added, "bos_token": None,
            "chat_template": TEMPLATE, "clean_up_tokenization_spaces": False, "eos_token": "<|im_end|>",
            "errors": "replace", "model_max_length": 2048, "pad_token": "<|endoftext|>",
            "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": None}
