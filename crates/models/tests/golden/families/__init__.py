"""What the families' configurations have in common: sizes and quantisations."""

HIDDEN, VOCAB, INNER, LAYERS = 128, 200, 256, 2
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 32

BASE = dict(
    hidden_size=HIDDEN,
    vocab_size=VOCAB,
    intermediate_size=INNER,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=KV_HEADS,
    rms_norm_eps=1e-5,
    max_position_embeddings=2048,
    rope_theta=10000.0,
)


def without(config, *keys):
    return {key: value for key, value in config.items() if key not in keys}


def affine(bits, group_size):
    return dict(mode="affine", bits=bits, group_size=group_size)


MXFP4 = dict(mode="mxfp4", bits=4, group_size=32)
NVFP4 = dict(mode="nvfp4", bits=4, group_size=16)
MXFP8 = dict(mode="mxfp8", bits=8, group_size=32)


def everything(quantization):
    return lambda path: quantization


def routers_in_eight_bits(quantization):
    """As mlx-lm quantises mixtures: the router in 8 bits."""

    def of(path):
        is_router = path.endswith(("mlp.gate", "mlp.gate.gate", "shared_expert_gate", "block_sparse_moe.gate", "feed_forward.gate"))
        return affine(8, 64) if is_router else quantization

    return of


plain = everything(None)
q4 = everything(affine(4, 64))
q4_experts = routers_in_eight_bits(affine(4, 64))
