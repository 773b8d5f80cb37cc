//! The tensors of gated short convolutions.

use jackalope_protocol::split::inner_unit;

use super::blocks::{Linear, MixerBlock, vector};
use jackalope_spec::{
    CacheKind, Dimension, HeadRows, Mixer, Presence, ShortConvSpec, TensorCut, TensorRole,
    TensorSpec,
};

/// Returns the gated short convolution at `module`, which has as many channels as the stream.
pub(super) fn short_conv(
    module: &str,
    channels: usize,
    conv_width: usize,
    has_bias: bool,
) -> MixerBlock {
    let at = |name: &str| format!("{module}.{name}");
    // The largest power of two that divides the channels and leaves enough units.
    let unit_channels = 1 << channels.trailing_zeros().min(inner_unit(channels, None).ilog2());
    let units = channels / unit_channels;
    let rows = |module: String| HeadRows::whole(module, units, unit_channels);
    let input = |start| HeadRows { num_rows: 3 * channels, start, ..rows(at("in_proj")) };
    let spec = ShortConvSpec {
        units,
        unit_channels,
        conv_width,
        has_bias,
        inputs: [input(0), input(channels), input(2 * channels)],
        convolution: rows(at("conv")),
        output: at("out_proj"),
    };
    let role = TensorRole::Mixer;
    let heads = || TensorCut::whole_column(Dimension::Heads, channels);
    let inward = Linear { role, output: 3 * channels, input: channels, has_bias };
    let mut tensors = inward.segments(&at("in_proj"), &[(Dimension::Heads, channels); 3]);
    tensors.push(TensorSpec {
        name: at("conv.weight"),
        role,
        shape: vec![channels, conv_width, 1],
        cut: heads(),
        is_quantizable: false,
        per_expert: None,
        fused: Vec::new(),
        presence: Presence::Always,
    });
    if has_bias {
        tensors.push(vector(&at("conv.bias"), role, channels, heads()));
    }
    let outward = Linear { role, output: channels, input: channels, has_bias };
    tensors.extend(outward.row(&spec.output, Dimension::Heads));
    let cache = CacheKind::State {
        elements_per_head: (conv_width - 1) * unit_channels,
        elements_per_kv_head: 0,
    };
    MixerBlock { mixer: Mixer::ShortConv(Box::new(spec)), cache, tensors }
}
