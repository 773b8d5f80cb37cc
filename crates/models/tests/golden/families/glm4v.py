"""The text parts of GLM-4V and GLM-4.5V, under the names of mlx-vlm."""

from . import BASE, affine, everything, plain


def wrapped(model_type, **text):
    return dict(model_type=model_type, text_config=dict(BASE, model_type=f"{model_type}_text") | text)


def glm4v(**more):
    rotation = dict(
        partial_rotary_factor=0.5,
        rope_scaling=dict(rope_type="default", mrope_section=[2, 2, 2]),
    )
    sizes = dict(hidden_size=144, num_attention_heads=6, num_key_value_heads=2)
    own = dict(intermediate_size=160, attention_bias=True, tie_word_embeddings=False)
    return wrapped("glm4v", **(rotation | sizes | own | more))


def glm4v_moe(**more):
    own = dict(
        moe_intermediate_size=96,
        n_routed_experts=12,
        n_shared_experts=1,
        num_experts_per_tok=3,
        first_k_dense_replace=1,
        n_group=1,
        topk_group=1,
        norm_topk_prob=True,
        routed_scaling_factor=1.5,
        use_qk_norm=False,
        attention_bias=True,
        head_dim=32,
        partial_rotary_factor=0.5,
        tie_word_embeddings=False,
        scoring_func="sigmoid",
        topk_method="noaux_tc",
        num_hidden_layers=3,
        rope_scaling=dict(type="default", mrope_section=[4, 2, 2]),
    )
    return wrapped("glm4v_moe", **(own | more))


def q4(path):
    return affine(8, 32) if path.endswith("mlp.gate") else affine(4, 32)


def cases():
    yield "glm4v-f32", glm4v(), "F32", plain
    wide = dict(hidden_size=128, num_attention_heads=4, intermediate_size=256)
    yield "glm4v-q4-f32", glm4v(**wide), "F32", everything(affine(4, 32))
    yield "glm4v-q4-bf16", glm4v(**wide), "BF16", everything(affine(4, 32))
    yield "glm4v_moe-f32", glm4v_moe(), "F32", plain
    yield "glm4v_moe-q4-f32", glm4v_moe(), "F32", q4
    yield "glm4v_moe-q4-bf16", glm4v_moe(num_experts_per_tok=12), "BF16", q4
