//! `jackalope synth`: writes a checkpoint with a real model's dimensions and random weights.

use jackalope_console::output;
use jackalope_store::synth::{self, Qwen3Size, SynthError};
use serde_json::json;

use crate::args::{SynthArgs, SynthSize};
use crate::progress::Terminal;

impl From<SynthSize> for Qwen3Size {
    fn from(arg: SynthSize) -> Qwen3Size {
        match arg {
            SynthSize::B0_6 => Qwen3Size::B0_6,
            SynthSize::B1_7 => Qwen3Size::B1_7,
            SynthSize::B4 => Qwen3Size::B4,
            SynthSize::B8 => Qwen3Size::B8,
            SynthSize::B30A3 => Qwen3Size::B30A3,
        }
    }
}

pub(crate) fn run(args: &SynthArgs) -> anyhow::Result<()> {
    let mut config = match &args.config {
        None => synth::qwen3(args.size.into()),
        Some(path) => synth::read_config(path)?,
    };
    if let Some(layers) = args.layers {
        config["num_hidden_layers"] = json!(layers);
    }
    let dir = &args.out;
    let num_bytes =
        synth::write(dir, config, args.bits, &Terminal).map_err(|err| match &args.config {
            Some(path) if matches!(err, SynthError::Spec(_)) => {
                anyhow::Error::new(err).context(path.display().to_string())
            }
            _ => err.into(),
        })?;
    if args.json {
        return Ok(output::line(json!({
            "model": dir, "bits": args.bits, "weights_bytes": num_bytes, "random_weights": true,
        }))?);
    }
    Ok(output::line(format_args!(
        "{}: random weights, {:.1} GB\n  measure it   jackalope bench --model {}",
        dir.display(),
        num_bytes as f64 / 1e9,
        dir.display()
    ))?)
}
