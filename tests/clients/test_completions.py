"""POST /v1/completions through the official client."""

import pytest

from conftest import TALKATIVE

PROMPT = "Once upon a time"


def complete(client, model, prompt=PROMPT, **options):
    options.setdefault("temperature", 0)
    return client.completions.create(model=model, prompt=prompt, **options)


def tokens_of(client, model, text):
    """Returns the tokens of a text, without sampling."""
    answer = complete(client, model, text, max_tokens=0, echo=True, extra_body={"return_token_ids": True})
    return answer.choices[0].model_extra["prompt_token_ids"]


def test_a_completion_has_every_field(client, model):
    answer = complete(client, model)
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    assert answer.model == model
    (choice,) = answer.choices
    assert choice.index == 0 and choice.logprobs is None
    assert choice.finish_reason in ("stop", "length")
    assert 0 < answer.usage.completion_tokens <= 16, "16 is the API's default"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_every_form_of_a_prompt_is_the_same(client, model):
    tokens = tokens_of(client, model, PROMPT)
    texts = {complete(client, model, prompt).choices[0].text for prompt in (PROMPT, [PROMPT], tokens, [tokens])}
    assert len(texts) == 1


def test_a_list_of_prompts_is_each_alone(client, model):
    prompts = [PROMPT, "Hello", "The capital of France is"]
    together = complete(client, model, prompts, n=2, seed=5, temperature=1)
    assert [choice.index for choice in together.choices] == list(range(6))
    alone = [complete(client, model, prompt, n=2, seed=5, temperature=1) for prompt in prompts]
    assert [choice.text for choice in together.choices] == [choice.text for answer in alone for choice in answer.choices]
    assert together.usage.prompt_tokens == sum(answer.usage.prompt_tokens for answer in alone)


def test_echo_puts_the_prompt_first(client, model):
    plain = complete(client, model).choices[0].text
    assert complete(client, model, echo=True).choices[0].text == PROMPT + plain
    assert complete(client, model, echo=True, max_tokens=0).choices[0].text == PROMPT


@pytest.mark.parametrize("echo", [False, True])
def test_every_token_is_found_at_its_offset(client, model, echo):
    choice = complete(client, model, "Hello é 🦘!", echo=echo, logprobs=2, max_tokens=30, **TALKATIVE).choices[0]
    logprobs = choice.logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.text_offset)
    assert logprobs.text_offset == sorted(logprobs.text_offset)
    found = 0
    for token, offset in zip(logprobs.tokens, logprobs.text_offset):
        # The end token is told but is no part of the text; halves of characters have no text of their own.
        if offset < len(choice.text) and not token.startswith("bytes:"):
            # What is left of a broken character before a token stands at the token's offset.
            assert choice.text[offset:].lstrip("\ufffd").startswith(token)
            found += 1
    assert found > 5


def test_a_text_scores_as_it_was_drawn(client, model):
    drawn = complete(client, model, logprobs=0, max_tokens=20, extra_body={"return_token_ids": True}).choices[0]
    prompt = tokens_of(client, model, PROMPT)
    scored = complete(client, model, prompt + drawn.model_extra["token_ids"], echo=True, logprobs=1, max_tokens=0).choices[0]
    assert scored.logprobs.token_logprobs[0] is None and scored.logprobs.top_logprobs[0] is None
    assert scored.logprobs.token_logprobs[len(prompt) :] == pytest.approx(drawn.logprobs.token_logprobs, abs=0.05)


def test_the_prompt_of_a_scored_text_is_told_in_front(client, model):
    plain = complete(client, model, logprobs=1).choices[0].logprobs
    echoed = complete(client, model, logprobs=1, echo=True).choices[0].logprobs
    assert echoed.tokens[-len(plain.tokens) :] == plain.tokens
    assert "".join(echoed.tokens[: -len(plain.tokens)]) == PROMPT


def test_the_likeliest_of_several_is_kept(client, model):
    options = {"seed": 9, "temperature": 1.5, "max_tokens": 12}
    every = complete(client, model, n=5, logprobs=0, **options)
    best = complete(client, model, best_of=5, **options)

    def mean(choice):
        return sum(choice.logprobs.token_logprobs) / len(choice.logprobs.token_logprobs)

    assert best.choices[0].text == max(every.choices, key=mean).text
    assert best.usage.completion_tokens == every.usage.completion_tokens


def test_a_stop_string_cuts_the_text(client, model):
    uncut = complete(client, model, max_tokens=40).choices[0].text
    stop = uncut[5:8]
    assert complete(client, model, max_tokens=40, stop=stop).choices[0].text == uncut[: uncut.index(stop)]


def test_stop_tokens_end_the_text(client, model):
    extra = {"return_token_ids": True}
    uncut = complete(client, model, max_tokens=20, extra_body=extra).choices[0].model_extra["token_ids"]
    answer = complete(client, model, max_tokens=20, extra_body={**extra, "stop_token_ids": [uncut[3]]})
    assert answer.choices[0].model_extra["token_ids"] == uncut[: uncut.index(uncut[3]) + 1]
    assert answer.choices[0].finish_reason == "stop"
