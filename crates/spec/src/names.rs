//! The names of tensors in checkpoints whose language model is a part: of a model that also sees, or
//! that drafts.

use std::borrow::Cow;

use crate::tensor::TensorHeaders;

/// How the names in a checkpoint become those of its language model.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TensorNames {
    /// Beginnings of names, and what replaces them. The first that fits is replaced.
    replaced: &'static [(&'static str, &'static str)],
    /// Beginnings of the names of tensors that the language model does not need.
    ignored: &'static [&'static str],
}

impl TensorNames {
    /// The names of a language model by itself.
    pub(crate) const PLAIN: TensorNames = TensorNames { replaced: &[], ignored: &[] };

    /// A language model beside a vision tower and layers that draft, in conversions and originals.
    pub(crate) const WRAPPED: TensorNames = TensorNames {
        replaced: &[("language_model.", ""), ("model.language_model.", "model.")],
        ignored: &[
            "vision_tower.",
            "vision_model.",
            "vision_encoder.",
            "vision_language_adapter.",
            "visual.",
            "patch_merger.",
            "pre_mm_projector_norm.",
            "multi_modal_projector.",
            "mm_projector.",
            "audio_tower.",
            "embed_audio.",
            "embed_vision.",
            "image_newline",
            "model.vision_tower.",
            "model.visual.",
            "model.multi_modal_projector.",
            "model.audio_tower.",
            "model.embed_audio.",
            "model.embed_vision.",
            "model.image_newline",
            "mtp.",
            "language_model.mtp.",
        ],
    };

    /// Names of a language model beside layers that draft.
    pub(crate) const DRAFTING: TensorNames =
        TensorNames { replaced: &[], ignored: &["mtp.", "model.mtp_layers."] };

    /// Returns the name in the language model; `None` if it does not need the tensor.
    pub fn of_model<'a>(&self, stored: &'a str) -> Option<Cow<'a, str>> {
        if self.ignored.iter().any(|prefix| stored.starts_with(prefix)) {
            return None;
        }
        let replaced = self.replaced.iter().find_map(|(from, to)| {
            let rest = stored.strip_prefix(from)?;
            Some(if to.is_empty() { rest.into() } else { format!("{to}{rest}").into() })
        });
        Some(replaced.unwrap_or(Cow::Borrowed(stored)))
    }

    /// Returns the tensors of the language model.
    pub(crate) fn headers_of_model(&self, stored: &TensorHeaders) -> TensorHeaders {
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
        for other in ["vision_tower.patch.weight", "model.visual.patch.weight", "mtp.norm.weight"] {
            assert_eq!(name(other), None);
        }
        assert_eq!(
            TensorNames::PLAIN.of_model("vision_tower.x").as_deref(),
            Some("vision_tower.x")
        );
    }
}
