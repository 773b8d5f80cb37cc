//! Names of tensors in checkpoints that contain more than a language model: encoders of images, or
//! multi-token prediction (MTP) layers.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

/// A part of a checkpoint that the language model does not use.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum UnusedPart {
    /// Encoders of images, and what connects them to the language model.
    Images,
    /// Encoders of audio, and what connects them to the language model.
    Audio,
    /// Speech generators, such as the "talker" of Qwen.
    Speech,
    /// Multi-token prediction (MTP) layers.
    Prediction,
    /// Corrections of routers that mlx-lm does not compute either.
    Routers,
    /// Constants of hashes, which `config.json` determines.
    Hashes,
}

impl fmt::Display for UnusedPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            UnusedPart::Images => "image encoders",
            UnusedPart::Audio => "audio encoders",
            UnusedPart::Speech => "speech synthesis",
            UnusedPart::Prediction => "multi-token prediction",
            UnusedPart::Routers => "corrections of routers",
            UnusedPart::Hashes => "constants of hashes",
        })
    }
}

/// How the names in a checkpoint become those of its language model.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TensorNames {
    /// Beginnings of names, and what replaces them. The first that fits is replaced.
    replaced: &'static [(&'static str, &'static str)],
    /// Parts of names in original checkpoints, and what replaces them.
    renamed: &'static [(&'static str, &'static str)],
    /// Beginnings of the names of tensors that the language model does not use.
    ignored: &'static [(UnusedPart, &'static [&'static str])],
    /// Parts of the names of tensors that the language model does not use.
    ignored_within: &'static [(UnusedPart, &'static [&'static str])],
}

impl TensorNames {
    /// Names of a language model without a vision part.
    pub const PLAIN: TensorNames =
        TensorNames { replaced: &[], renamed: &[], ignored: &[], ignored_within: &[] };

    /// A language model beside a vision tower and MTP layers, in conversions and originals.
    pub const WRAPPED: TensorNames = TensorNames {
        replaced: &[("language_model.", ""), ("model.language_model.", "model.")],
        ignored: &[
            (
                UnusedPart::Images,
                &[
                    "vision_tower.",
                    "vision_model.",
                    "vision_encoder.",
                    "vision_language_adapter.",
                    "visual.",
                    "patch_merger.",
                    "patch_merge_mlp.",
                    "pre_mm_projector_norm.",
                    "multi_modal_projector.",
                    "mm_projector.",
                    "embed_vision.",
                    "vision_embedder.",
                    "image_newline",
                    "model.vision_tower.",
                    "model.visual.",
                    "model.multi_modal_projector.",
                    "model.patch_merge_mlp.",
                    "model.embed_vision.",
                    "model.vision_embedder.",
                    "model.image_newline",
                ],
            ),
            (
                UnusedPart::Audio,
                &["audio_tower.", "embed_audio.", "model.audio_tower.", "model.embed_audio."],
            ),
            (UnusedPart::Prediction, &["mtp.", "language_model.mtp."]),
        ],
        ..TensorNames::PLAIN
    };

    /// Names of a language model beside MTP layers.
    pub const DRAFTING: TensorNames = TensorNames {
        ignored: &[(UnusedPart::Prediction, &["mtp.", "model.mtp_layers."])],
        ..TensorNames::PLAIN
    };

    /// Names of ERNIE 4.5, whose original checkpoints have more than mlx-lm computes.
    pub const ERNIE: TensorNames = TensorNames {
        ignored_within: &[
            (
                UnusedPart::Prediction,
                &["mtp_block.", "mtp_linear_proj.", "mtp_hidden_norm.", "mtp_emb_norm."],
            ),
            (UnusedPart::Routers, &["e_score_correction_bias"]),
        ],
        ..TensorNames::PLAIN
    };

    /// Names of Ling, whose conversions move the router into a module of its own.
    pub const BAILING: TensorNames = TensorNames {
        renamed: &[
            (".mlp.gate.weight", ".mlp.gate.gate_proj.weight"),
            (".mlp.gate.bias", ".mlp.gate.gate_proj.bias"),
        ],
        ..TensorNames::PLAIN
    };

    /// Names of Kimi Linear, whose conversions name blocks as other families do.
    pub const KIMI: TensorNames = TensorNames {
        renamed: &[
            (".block_sparse_moe.gate.e_score_correction_bias", ".mlp.e_score_correction_bias"),
            (".block_sparse_moe.", ".mlp."),
            (".q_conv1d.", ".q_conv.conv."),
            (".k_conv1d.", ".k_conv.conv."),
            (".v_conv1d.", ".v_conv.conv."),
        ],
        ..TensorNames::PLAIN
    };

    /// Names of EXAONE with experts, whose conversions move a vector into the router.
    pub const EXAONE_MOE: TensorNames = TensorNames {
        renamed: &[(".mlp.e_score_correction_bias", ".mlp.gate.e_score_correction_bias")],
        ..TensorNames::DRAFTING
    };

    /// Names of GLM-5 Next, whose conversions name the connections of streams and the convolutions anew.
    pub const GLM_NEXT: TensorNames = TensorNames {
        renamed: &[
            (".hc_attn_", ".attn_hc."),
            (".hc_ffn_", ".ffn_hc."),
            (".q_conv1d.", ".q_conv.conv."),
            (".k_conv1d.", ".k_conv.conv."),
            (".v_conv1d.", ".v_conv.conv."),
        ],
        ..TensorNames::WRAPPED
    };

    /// Names of DeepSeek V4, whose conversions name what is outside of the layers, the connections of streams
    /// and the projections of experts as other families do.
    pub const DEEPSEEK_V4: TensorNames = TensorNames {
        replaced: &[
            ("language_model.", ""),
            ("model.language_model.", "model."),
            ("layers.", "model.layers."),
            ("embed.", "model.embed_tokens."),
            ("norm.", "model.norm."),
            ("head.", "lm_head."),
            ("hc_head_", "model.hc_head."),
        ],
        renamed: &[
            (".hc_attn_", ".attn_hc."),
            (".hc_ffn_", ".ffn_hc."),
            (".gate.bias", ".gate.e_score_correction_bias"),
            (".shared_experts.w1.", ".shared_experts.gate_proj."),
            (".shared_experts.w2.", ".shared_experts.down_proj."),
            (".shared_experts.w3.", ".shared_experts.up_proj."),
        ],
        ..TensorNames::WRAPPED
    };

    /// Names of DeepSeek V4.1, whose conversions by mlx-vlm name only what is outside of the layers as other families do,
    /// and those by mlx-lm all blocks.
    pub const DEEPSEEK_V41: TensorNames = TensorNames {
        replaced: &[
            ("language_model.model.", "model."),
            ("language_model.lm_head.", "lm_head."),
            ("language_model.layers.", "model.layers."),
            ("language_model.embed_tokens.", "model.embed_tokens."),
            ("language_model.norm.", "model.norm."),
            ("language_model.head.", "lm_head."),
            ("layers.", "model.layers."),
            ("embed.", "model.embed_tokens."),
            ("norm.", "model.norm."),
            ("head.", "lm_head."),
        ],
        renamed: &[
            (".hc_attn_", ".attn_hc."),
            (".hc_ffn_", ".ffn_hc."),
            (".mlp.gate.", ".ffn.gate."),
            (".gate.bias", ".gate.e_score_correction_bias"),
            (".shared_experts.w1.", ".shared_experts.gate_proj."),
            (".shared_experts.w2.", ".shared_experts.down_proj."),
            (".shared_experts.w3.", ".shared_experts.up_proj."),
            (".ffn.experts.gate_proj", ".ffn.switch_mlp.gate_proj"),
            (".ffn.experts.up_proj", ".ffn.switch_mlp.up_proj"),
            (".ffn.experts.down_proj", ".ffn.switch_mlp.down_proj"),
            (".mlp.experts.", ".ffn."),
            (".mlp.", ".ffn."),
            (".input_layernorm.", ".attn_norm."),
            (".post_attention_layernorm.", ".ffn_norm."),
            (".self_attn.q_a_proj", ".attn.wq_a"),
            (".self_attn.q_a_norm", ".attn.q_norm"),
            (".self_attn.q_b_proj", ".attn.wq_b"),
            (".self_attn.kv_proj", ".attn.wkv"),
            (".self_attn.o_a_proj", ".attn.wo_a"),
            (".self_attn.o_b_proj", ".attn.wo_b"),
            (".self_attn.sinks", ".attn.attn_sink"),
            (".self_attn.compressor.kv_proj", ".attn.compressor.wkv"),
            (".self_attn.compressor.gate_proj", ".attn.compressor.wgate"),
            (".self_attn.compressor.kv_norm", ".attn.compressor.norm"),
            (".self_attn.indexer.q_b_proj", ".attn.indexer.wq_b"),
            (".self_attn.indexer.k_proj", ".attn.indexer.wk"),
            (".self_attn.", ".attn."),
        ],
        ignored: &[
            (
                UnusedPart::Images,
                &["vision.", "aligner.", "image_start", "image_end", "image_newline"],
            ),
            (UnusedPart::Prediction, &["mtp.", "language_model.mtp."]),
        ],
        ignored_within: &[(UnusedPart::Images, &[".gate.bias_vl"])],
    };

    /// Names of Laguna, whose conversions move the router into a module of its own.
    pub const LAGUNA: TensorNames = TensorNames {
        renamed: &[
            (".mlp.gate.weight", ".mlp.gate.proj.weight"),
            (".mlp.experts.e_score_correction_bias", ".mlp.gate.e_score_correction_bias"),
        ],
        ..TensorNames::WRAPPED
    };

    /// Names of MiniMax M3, some of whose conversions have dense blocks where others have experts.
    pub const MINIMAX: TensorNames = TensorNames {
        renamed: &[
            (".block_sparse_moe.gate_proj.", ".mlp.gate_proj."),
            (".block_sparse_moe.up_proj.", ".mlp.up_proj."),
            (".block_sparse_moe.down_proj.", ".mlp.down_proj."),
        ],
        ..TensorNames::WRAPPED
    };

    /// Names of Qwen4, whose originals name the parts of tables of n-grams in another way.
    pub const QWEN4: TensorNames = TensorNames {
        renamed: &[(".ngram_embedding.shard_", ".ngram_embedding.shards.")],
        ignored_within: &[(
            UnusedPart::Hashes,
            &[".layer_multipliers", ".ngram_heads_offsets", ".ngram_heads_vocab_sizes"],
        )],
        ..TensorNames::WRAPPED
    };

    /// Names of Step 3.5, whose conversions name blocks as other families do.
    pub const STEP: TensorNames = TensorNames {
        renamed: &[
            (".moe.gate_proj.", ".mlp.switch_mlp.gate_proj."),
            (".moe.up_proj.", ".mlp.switch_mlp.up_proj."),
            (".moe.down_proj.", ".mlp.switch_mlp.down_proj."),
            (".moe.gate.", ".mlp.gate.gate."),
            (".moe.router_bias", ".mlp.gate.router_bias"),
            (".share_expert.", ".mlp.share_expert."),
        ],
        ignored_within: &[(UnusedPart::Prediction, &[".mtp"])],
        ..TensorNames::PLAIN
    };

    /// Names of Step 3.7: those of Step 3.5 beside an image encoder.
    pub const STEP_VISION: TensorNames = TensorNames {
        ignored: &[(
            UnusedPart::Images,
            &[
                "vision_model.",
                "vit_large_projector.",
                "model.vision_model.",
                "model.vit_large_projector.",
                "conv1.",
                "ln_pre.",
                "ln_post.",
                "transformer.",
                "vit_downsampler",
                "positional_embedding",
                "class_embedding",
            ],
        )],
        replaced: TensorNames::WRAPPED.replaced,
        ..TensorNames::STEP
    };

    /// Names of MiMo V2 beside encoders of images and sound.
    pub const MIMO_V2: TensorNames = TensorNames {
        ignored: &[
            (UnusedPart::Images, &["vision_tower.", "visual."]),
            (UnusedPart::Audio, &["audio_encoder.", "speech_embeddings."]),
        ],
        replaced: TensorNames::WRAPPED.replaced,
        ..TensorNames::PLAIN
    };

    /// Names of Qwen3-Omni, whose language model is inside the "thinker".
    pub const OMNI: TensorNames = TensorNames {
        replaced: &[
            ("thinker.language_model.", ""),
            ("thinker.model.", "model."),
            ("thinker.lm_head.", "lm_head."),
        ],
        ignored: &[
            (UnusedPart::Images, &["thinker.vision_tower.", "thinker.visual."]),
            (UnusedPart::Audio, &["thinker.audio_tower."]),
            (UnusedPart::Speech, &["talker.", "code2wav."]),
        ],
        ..TensorNames::PLAIN
    };

    /// Names of LFM2 with experts, some of whose originals number the projections.
    pub const LFM2_MOE: TensorNames = TensorNames {
        renamed: &[(".w1.", ".gate_proj."), (".w2.", ".down_proj."), (".w3.", ".up_proj.")],
        ..TensorNames::PLAIN
    };

    /// Names of dense Granite 4, whose originals name the block as the expert that every token passes.
    pub const GRANITE_DENSE: TensorNames = TensorNames {
        renamed: &[
            (".shared_mlp.input_linear.", ".mlp.input_linear."),
            (".shared_mlp.output_linear.", ".mlp.down_proj."),
        ],
        ..TensorNames::PLAIN
    };

    /// Returns the part that a tensor belongs to which the language model does not use; `None` if it
    /// may use the tensor.
    pub fn unused_part(&self, stored: &str) -> Option<UnusedPart> {
        let begins = |names: &&str| stored.starts_with(*names);
        let has = |names: &&str| stored.contains(*names);
        let known = self.ignored.iter().find(|(_, names)| names.iter().any(&begins));
        let within = || self.ignored_within.iter().find(|(_, names)| names.iter().any(&has));
        known.or_else(within).map(|(part, _)| *part)
    }

    /// Returns the name in the language model; `None` if it does not use the tensor.
    pub fn of_model<'a>(&self, stored: &'a str) -> Option<Cow<'a, str>> {
        if self.unused_part(stored).is_some() {
            return None;
        }
        let replaced = self.replaced.iter().find_map(|(from, to)| {
            let rest = stored.strip_prefix(from)?;
            Some(if to.is_empty() { rest.into() } else { format!("{to}{rest}").into() })
        });
        let name: Cow<'a, str> = replaced.unwrap_or(Cow::Borrowed(stored));
        let renamed = self.renaming(&name);
        Some(renamed.map_or(name.clone(), |(from, to)| name.replace(from, to).into()))
    }

    /// Whether a part of the name differs in conversions.
    pub fn is_renamed(&self, stored: &str) -> bool {
        self.renaming(stored).is_some()
    }

    fn renaming(&self, name: &str) -> Option<&'static (&'static str, &'static str)> {
        self.renamed.iter().find(|(from, to)| name.contains(from) && !name.contains(to))
    }

    /// Returns the tensors of the language model.
    pub fn headers_of_model<H: Clone>(&self, stored: &BTreeMap<String, H>) -> BTreeMap<String, H> {
        let named = stored
            .iter()
            .filter_map(|(name, header)| Some((self.of_model(name)?.into_owned(), header.clone())));
        named.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_language_model_is_found_among_other_parts() {
        let name = |stored| TensorNames::WRAPPED.of_model(stored).map(Cow::into_owned);
        let norm = Some("model.norm.weight".to_owned());
        assert_eq!(name("language_model.model.norm.weight"), norm);
        assert_eq!(name("model.language_model.norm.weight"), norm);
        assert_eq!(name("model.norm.weight"), norm);
        assert_eq!(name("language_model.lm_head.weight"), Some("lm_head.weight".to_owned()));
        assert_eq!(name("lm_head.weight"), Some("lm_head.weight".to_owned()));
        let name = |stored| TensorNames::OMNI.of_model(stored).map(Cow::into_owned);
        for stored in ["thinker.model.norm.weight", "thinker.language_model.model.norm.weight"] {
            assert_eq!(name(stored), norm);
        }
        let speech = "talker.model.norm.weight";
        assert_eq!(TensorNames::OMNI.unused_part(speech), Some(UnusedPart::Speech));
        let name = |stored| TensorNames::WRAPPED.of_model(stored).map(Cow::into_owned);
        for other in ["vision_tower.patch.weight", "model.visual.patch.weight", "mtp.norm.weight"] {
            assert_eq!(name(other), None);
        }
        assert_eq!(
            TensorNames::PLAIN.of_model("vision_tower.x").as_deref(),
            Some("vision_tower.x")
        );
    }

    #[test]
    fn names_of_originals_become_those_of_conversions() {
        let router = "model.layers.1.mlp.gate.gate_proj.weight";
        for stored in ["model.layers.1.mlp.gate.weight", router] {
            assert_eq!(TensorNames::BAILING.of_model(stored).as_deref(), Some(router));
        }
        let correction = "model.layers.1.mlp.moe_statics.e_score_correction_bias";
        assert_eq!(TensorNames::ERNIE.unused_part(correction), Some(UnusedPart::Routers));
        let drafting = "model.mtp_block.0.mlp.up_proj.weight";
        assert_eq!(TensorNames::ERNIE.unused_part(drafting), Some(UnusedPart::Prediction));
    }
}
