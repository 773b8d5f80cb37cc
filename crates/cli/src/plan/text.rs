//! Formats a placement, or its refusal, for people and machines.

use jackalope_placement::{
    BATCH_SEQUENCES, FewerMachines, NodeOffer, Placement, PlacementModel, PlacementOption,
    PlacementRefusal, Speed, SplitKind, TensorRole,
};
use jackalope_protocol::counted;
use jackalope_protocol::split::Split;
use serde_json::{Value, json};

use crate::split::bytes;

/// Formats a placement: a table of ranks, the reason, a table of options, and `fewer`, if fewer
/// machines are expected to be faster.
pub(crate) fn placement(
    model: &PlacementModel,
    offers: &[NodeOffer],
    placement: &Placement,
    fewer: Option<&FewerMachines>,
) -> String {
    let mut text = format!("{}{}\n", describe(model), model.layout.describe_unused(bytes));
    let Placement { context_tokens, context_tokens_max, reason, .. } = placement;
    let context = counted(context_tokens, "token");
    text += &format!("context {context}, up to {context_tokens_max} would fit with this split\n\n");
    let part = part(&placement.split);
    let mut rows = vec![cells(["rank", "machine", part, "takes", "of", "weights", "cache"])];
    for (rank, plan) in placement.ranks.iter().enumerate() {
        rows.push(vec![
            rank.to_string(),
            plan.name.clone(),
            plan.number.to_string(),
            bytes(plan.need.total()),
            bytes(plan.usable_bytes),
            bytes(plan.need.weights_bytes),
            bytes(plan.need.kv_bytes),
        ]);
    }
    text += &table(&rows);
    text += &format!("\n{reason}\n\n");
    let batch = format!("decode of {BATCH_SEQUENCES}");
    let titles = ["machines", "split", "fits", "decode", &batch, "prefill", "waiting"];
    let mut rows = vec![cells(titles)];
    rows.extend(placement.options.iter().map(|option| option_row(offers, option)));
    text += &table(&rows);
    if placement.speed.is_none() {
        text += "\nno estimate of the speed: the memory bandwidth of a machine is unknown\n";
    }
    if let Some(fewer) = fewer {
        text += &format!("\nwarning: {fewer}\nhint: {}\n", fewer.hint());
    }
    text
}

/// Returns the name of the quantity that a rank's number counts.
fn part(split: &Split) -> &'static str {
    match split {
        Split::Tensor(_) => "share",
        Split::Pipeline(_) => "layers",
    }
}

fn cells<const N: usize>(words: [&str; N]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

fn describe(model: &PlacementModel) -> String {
    let format = match model.quantization {
        Some(format) => {
            format!("{} in groups of {}", counted(format.bits, "bit"), format.group_size)
        }
        None => format!("{} bits", 8 * model.element_bytes()),
    };
    let weights = bytes(model.weights_bytes());
    let kv = bytes(model.kv_bytes_per_token());
    let states = match model.state_bytes() {
        0 => String::new(),
        states => format!(" and {} for a sequence", bytes(states)),
    };
    let name = &model.architecture;
    format!("{name}, {format}: {weights} of weights, {kv} of cache for a token{states}")
}

fn option_row(offers: &[NodeOffer], option: &PlacementOption) -> Vec<String> {
    let names: Vec<&str> = option.offer_idxs.iter().map(|&idx| offers[idx].name.as_str()).collect();
    let fits = match option.missing_bytes {
        0 => "yes".to_owned(),
        missing => format!("no, {} missing", bytes(missing)),
    };
    let speed = |text: fn(Speed) -> String| option.speed.map_or("?".to_owned(), text);
    vec![
        names.join(", "),
        split(&option.split),
        fits,
        speed(|it| format!("{:.1} tokens/s", it.decode_tokens_per_s)),
        speed(|it| format!("{:.1} tokens/s", it.batch_decode_tokens_per_s)),
        speed(|it| format!("{:.0} tokens/s", it.prefill_tokens_per_s)),
        speed(|it| format!("{:.0} %", it.decode_waiting * 100.0)),
    ]
}

fn split(split: &Split) -> String {
    let numbers: Vec<String> = split.numbers().iter().map(u32::to_string).collect();
    format!("{} {}", SplitKind::of(split).name(), numbers.join(","))
}

/// Formats a table with columns as wide as their widest cell.
fn table(rows: &[Vec<String>]) -> String {
    let num_columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..num_columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let line: String =
            row.iter().zip(&widths).map(|(cell, width)| format!("  {cell:width$}")).collect();
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn model_json(model: &PlacementModel) -> Value {
    json!({
        "architecture": model.architecture,
        "bits": model.quantization.map(|it| it.bits),
        "group_size": model.quantization.map(|it| it.group_size),
        "num_layers": model.num_layers(), "context_tokens": model.context_tokens,
        "weights_bytes": model.weights_bytes(), "replicated_bytes": model.replicated_bytes(),
        "embedding_bytes": model.bytes_of(TensorRole::Embedding),
        "head_bytes": model.bytes_of(TensorRole::Head),
        "attention_bytes": model.bytes_of(TensorRole::Mixer),
        "mlp_bytes": model.bytes_of(TensorRole::Mlp),
        "experts_bytes": model.bytes_of(TensorRole::Experts),
        "kv_bytes_per_token": model.kv_bytes_per_token(), "state_bytes": model.state_bytes(),
    })
}

fn speed_json(speed: Option<Speed>) -> Value {
    match speed {
        None => Value::Null,
        Some(speed) => json!({
            "decode_tokens_per_s": speed.decode_tokens_per_s,
            "batch_sequences": BATCH_SEQUENCES,
            "batch_decode_tokens_per_s": speed.batch_decode_tokens_per_s,
            "prefill_tokens_per_s": speed.prefill_tokens_per_s,
            "decode_waiting": speed.decode_waiting,
            "usual_request_s": speed.usual_request_s(),
        }),
    }
}

/// Returns the numbers of all ranks, with their name.
fn numbers(split: &Split) -> (&'static str, &[u32]) {
    match split {
        Split::Tensor(shares) => ("shares", shares),
        Split::Pipeline(layers) => ("layers", layers),
    }
}

/// Returns the placement as JSON.
pub(crate) fn placement_json(
    model: &PlacementModel,
    offers: &[NodeOffer],
    placement: &Placement,
    fewer: Option<&FewerMachines>,
) -> Value {
    let part = part(&placement.split);
    let ranks = placement.ranks.iter().map(|rank| {
        json!({
            "host_idx": rank.offer_idx, "name": rank.name, part: rank.number,
            "weights_bytes": rank.need.weights_bytes, "kv_bytes": rank.need.kv_bytes,
            "overhead_bytes": rank.need.overhead_bytes, "needed_bytes": rank.need.total(),
            "usable_bytes": rank.usable_bytes,
        })
    });
    let options = placement.options.iter().map(|option| option_json(offers, option));
    let (all, numbers) = numbers(&placement.split);
    json!({
        "fits": true, "model": model_json(model), "context_tokens": placement.context_tokens,
        "context_tokens_max": placement.context_tokens_max,
        "split": SplitKind::of(&placement.split).name(), all: numbers,
        "ranks": ranks.collect::<Value>(), "speed": speed_json(placement.speed),
        "reason": placement.reason.to_string(), "options": options.collect::<Value>(),
        "faster_with_fewer": fewer.map(|it| option_json(offers, &it.option)),
    })
}

fn option_json(offers: &[NodeOffer], option: &PlacementOption) -> Value {
    let names: Vec<&String> = option.offer_idxs.iter().map(|&idx| &offers[idx].name).collect();
    let (kind, numbers) = numbers(&option.split);
    json!({
        "host_idxs": option.offer_idxs, "names": names,
        "split": SplitKind::of(&option.split).name(), kind: numbers,
        "fits": option.fits(), "missing_bytes": option.missing_bytes,
        "speed": speed_json(option.speed),
    })
}

/// Returns the refusal as JSON.
pub(crate) fn refusal_json(model: &PlacementModel, refusal: &PlacementRefusal) -> Value {
    let nodes = refusal.nodes.iter().map(|node| {
        json!({
            "name": node.name, "needed_bytes": node.needed_bytes,
            "usable_bytes": node.usable_bytes, "missing_bytes": node.missing_bytes(),
        })
    });
    json!({
        "fits": false, "model": model_json(model), "context_tokens": refusal.context_tokens,
        "context_tokens_max": refusal.context_tokens_max,
        "fitting_split": refusal.fitting_split.map(SplitKind::name),
        "missing_bytes": refusal.missing_bytes, "nodes": nodes.collect::<Value>(),
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use jackalope_placement::{LinkKind, Links, PlacementConstraints, faster_with_fewer, place};
    use jackalope_protocol::Device;

    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [cells(["a", "bé", "c"]), cells(["long", "x", ""])];
        assert_eq!(table(&rows), "  a     bé  c\n  long  x\n");
    }

    /// Returns the text and the JSON of a plan of the shipped model over two Macs.
    fn over_two(kind: LinkKind, memory_bytes_per_s: Option<u64>) -> (String, Value) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/jackalope-mini");
        let model = PlacementModel::read(&dir).unwrap();
        let offer = |name| NodeOffer {
            memory_bytes_per_s,
            device: Device::Gpu,
            ..NodeOffer::new(name, 4 << 30)
        };
        let (offers, links) = (["mac1", "mac2"].map(offer), Links::usual(2, kind));
        let constraints = PlacementConstraints { num_machines: Some(2), ..Default::default() };
        let found = place(&model, &offers, &links, constraints).unwrap();
        let fewer = faster_with_fewer(&model, &offers, &links, constraints, &found);
        let text = placement(&model, &offers, &found, fewer.as_ref());
        (text, placement_json(&model, &offers, &found, fewer.as_ref()))
    }

    #[test]
    fn a_plan_warns_of_machines_that_make_answers_slower() {
        let (text, plan) = over_two(LinkKind::Ethernet, Some(100_000_000_000));
        let warning = "\nwarning: mac1 alone is expected to be faster than these 2 machines: ";
        assert!(text.contains(warning), "{text}");
        assert!(text.ends_with("\nhint: leave out the other machines: `--hosts mac1`\n"), "{text}");
        let fewer = &plan["faster_with_fewer"];
        assert_eq!((&fewer["names"], &fewer["host_idxs"]), (&json!(["mac1"]), &json!([0])));
        let seconds = |speed: &Value| speed["usual_request_s"].as_f64().unwrap();
        assert!(seconds(&fewer["speed"]) < seconds(&plan["speed"]), "{plan}");
        let (text, plan) = over_two(LinkKind::Ethernet, None);
        assert!(!text.contains("warning:") && text.contains("no estimate of the speed"), "{text}");
        assert_eq!((&plan["faster_with_fewer"], &plan["speed"]), (&Value::Null, &Value::Null));
    }

    #[test]
    fn a_plan_shows_the_speed_of_eight_sequences() {
        let (text, plan) = over_two(LinkKind::Thunderbolt, Some(100_000_000_000));
        assert!(text.contains("  decode of 8 "), "{text}");
        let speed = &plan["speed"];
        assert_eq!(speed["batch_sequences"], 8);
        let batch = speed["batch_decode_tokens_per_s"].as_f64().unwrap();
        assert!(text.contains(&format!("  {batch:.1} tokens/s")), "{text}");
        assert!(speed["decode_tokens_per_s"].as_f64().unwrap() < batch, "{plan}");
    }
}
