"""LongCat-Flash: two latent attentions and two dense blocks in a layer, experts beside the second half."""

from . import BASE, affine, plain, q4, without
from .deepseek import ODD, WIDE

EXPERTS = dict(
    num_layers=2,
    ffn_hidden_size=192,
    expert_ffn_hidden_size=128,
    n_routed_experts=10,
    zero_expert_num=6,
    moe_topk=6,
    routed_scaling_factor=3.0,
    attention_method="MLA",
    zero_expert_type="identity",
    mla_scale_q_lora=True,
    mla_scale_kv_lora=True,
    attention_bias=False,
    router_bias=False,
)


def config(sizes, **more):
    own = without(BASE, "intermediate_size", "num_hidden_layers", "num_key_value_heads")
    sizes = without(sizes, "num_key_value_heads")
    return dict(own, **EXPERTS) | dict(sizes, model_type="longcat_flash") | more


def q4_experts(path):
    return affine(8, 64) if path.endswith("classifier") else q4(path)


def cases():
    yield "longcat_flash-f32", config(ODD), "F32", plain
    biased = dict(attention_bias=True, router_bias=True, norm_topk_prob=True)
    yield "longcat_flash-biases-f32", config(ODD, **biased, n_routed_experts=9, zero_expert_num=3), "F32", plain
    yield "longcat_flash-q4-f32", config(WIDE), "F32", q4_experts
    # A token passes all experts, so that rounding chooses no other ones.
    settled = dict(n_routed_experts=4, zero_expert_num=2, num_layers=1)
    yield "longcat_flash-q4-bf16", config(WIDE, **settled), "BF16", q4_experts
    own = dict(rope_theta=10000000.0, num_layers=1)
    yield "longcat_flash-per-expert-f32", config(WIDE, **own), "F32", plain
