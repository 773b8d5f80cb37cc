"""POST /v1/embeddings, /tokenize and /detokenize."""

import math

import openai
import pytest

TEXTS = ["The cat sat on the mat.", "A cat is sitting on a mat.", "Hello!", "The cat sat on the mat."]


def cosine(a, b):
    return sum(x * y for x, y in zip(a, b))


def embed(client, model, input, **options):
    return [entry.embedding for entry in client.embeddings.create(model=model, input=input, **options).data]


def test_vectors_have_the_length_one_and_the_order_of_the_texts(client, model):
    vectors = embed(client, model, TEXTS)
    assert len(vectors) == len(TEXTS)
    for vector in vectors:
        assert math.isclose(cosine(vector, vector), 1, rel_tol=1e-5)
    assert cosine(vectors[0], vectors[3]) > 0.9999
    assert cosine(vectors[0], vectors[1]) > cosine(vectors[0], vectors[2])


def test_both_encodings_say_the_same(client, model):
    # The client asks for base64 by itself unless it is told otherwise.
    floats = embed(client, model, TEXTS, encoding_format="float")
    for a, b in zip(floats, embed(client, model, TEXTS)):
        assert cosine(a, b) > 0.9999


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_a_text_is_embedded_alike_alone_and_among_others(client, model, pooling):
    options = {"extra_body": {"pooling": pooling}}
    together = embed(client, model, TEXTS, **options)
    for text, vector in zip(TEXTS, together):
        assert cosine(embed(client, model, text, **options)[0], vector) > 0.9999


def test_fewer_dimensions_are_the_first_ones(client, model):
    whole = embed(client, model, TEXTS[0])[0]
    short = embed(client, model, TEXTS[0], dimensions=16)[0]
    assert len(short) == 16
    norm = math.sqrt(cosine(whole[:16], whole[:16]))
    assert all(math.isclose(a, b / norm, rel_tol=1e-4, abs_tol=1e-6) for a, b in zip(short, whole))
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        embed(client, model, TEXTS[0], dimensions=len(whole) + 1)


def test_tokens_are_embedded_like_their_text(client, model, http):
    tokens = http.post("/tokenize", json={"prompt": TEXTS[0]}).json()["tokens"]
    answer = client.embeddings.create(model=model, input=[tokens, tokens])
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 2 * len(tokens)
    text = embed(client, model, TEXTS[0])[0]
    assert all(cosine(entry.embedding, text) > 0.9999 for entry in answer.data)


def test_many_texts_at_once(client, model):
    assert len(embed(client, model, [f"Text number {idx}" for idx in range(500)])) == 500


def test_tokens_become_their_text_again(http):
    text = "Hello world, caf\u00e9!"
    found = http.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert http.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": text}


def test_a_conversation_is_counted_as_its_answer_counts_it(client, model, http):
    messages = [{"role": "user", "content": "Hello!"}]
    found = http.post("/tokenize", json={"model": model, "messages": messages}).json()
    answer = client.chat.completions.create(model=model, messages=messages, max_tokens=1)
    assert found["count"] == answer.usage.prompt_tokens
