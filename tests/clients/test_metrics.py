"""Metrics as Prometheus' own client reads them."""

from prometheus_client.parser import text_string_to_metric_families


def families(http):
    answer = http.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return {family.name: family for family in text_string_to_metric_families(answer.text)}


def total(family, suffix=""):
    return sum(sample.value for sample in family.samples if sample.name.endswith(suffix))


def test_every_family_is_read_and_counts_what_was_done(http, client, model):
    before = families(http)
    client.completions.create(model=model, prompt="Once upon", max_tokens=7, extra_body={"ignore_eos": True})
    after = families(http)
    assert len(after) > 100
    for name, family in after.items():
        assert family.documentation and family.type in ("counter", "gauge", "histogram"), name
    drawn = total(after["vllm:generation_tokens"]) - total(before["vllm:generation_tokens"])
    assert drawn >= 7
    requests = "vllm:e2e_request_latency_seconds"
    assert total(after[requests], "_count") == total(before[requests], "_count") + 1


def test_buckets_rise_to_the_count(http, client, model):
    client.completions.create(model=model, prompt="Once upon", max_tokens=3)
    for family in families(http).values():
        if family.type != "histogram":
            continue
        series = {}
        for sample in family.samples:
            labels = tuple(sorted((k, v) for k, v in sample.labels.items() if k != "le"))
            series.setdefault(labels, {})[(sample.name.rsplit("_", 1)[1], sample.labels.get("le"))] = sample.value
        for found in series.values():
            buckets = [value for (part, _), value in found.items() if part == "bucket"]
            assert buckets == sorted(buckets)
            assert found[("bucket", "+Inf")] == found[("count", None)]


def test_ranks_tell_memory_and_where_the_time_went(http):
    found = families(http)
    for name in ("jackalope_rank_active_bytes", "jackalope_rank_collectives_seconds", "jackalope_rank_sent_bytes"):
        assert [sample.labels["rank"] for sample in found[name].samples] == ["0", "1"], name
