//! Writes the tables of docs/models.md from the descriptions and the golden values, and holds the page
//! to them. `JACKALOPE_WRITE_PAGES=1 cargo test -p jackalope-families page` writes them anew.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use jackalope_families::{computed_types, model_spec};
use jackalope_protocol::KV_BLOCK_TOKENS;
use jackalope_protocol::split::Shares;
use jackalope_spec::{
    CacheKind, ElementType, HeadTable, Mixer, ModelLayout, TensorHeader, TensorHeaders, TensorRole,
};
use jackalope_testing::pages;
use serde_json::{Value, json};

/// Bits of the quantised weights in the table of sizes, in groups of 64.
const BITS: usize = 4;
const GROUP_SIZE: usize = 64;

/// Bits of routers, as mlx-lm quantises them.
const ROUTER_BITS: usize = 8;

/// Tokens of context for which the table of sizes leaves room.
const CONTEXT_TOKENS: u64 = 32 * 1024;

/// Tokens of a row, by default.
const STEP_TOKENS: usize = 512;

/// Part of a machine's memory that a model can take: what macOS lets a GPU use by default.
const USABLE_PERCENT: u64 = 75;

/// Memory of all machines together, in GB.
const MEMORIES: [u64; 8] = [16, 32, 64, 128, 256, 512, 1024, 2048];

/// A golden case without its values.
struct Case {
    config: Value,
    dtype: String,
}

fn golden() -> BTreeMap<String, Vec<Case>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data/golden");
    let mut families: BTreeMap<String, Vec<Case>> = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let text = std::fs::read_to_string(entry.unwrap().path()).unwrap();
        let file: Value = serde_json::from_str(&text).unwrap();
        for case in file["cases"].as_array().unwrap() {
            let config = case["config"].clone();
            let model_type = config["model_type"].as_str().unwrap().to_owned();
            let dtype = case["dtype"].as_str().unwrap().to_lowercase();
            families.entry(model_type).or_default().push(Case { config, dtype });
        }
    }
    families
}

/// What the layers of a family's cases are: `attention, windows, experts`.
fn layers(cases: &[Case]) -> String {
    let mut parts: BTreeSet<&str> = BTreeSet::new();
    for case in cases {
        let spec = model_spec(&case.config).unwrap();
        parts.extend(spec.streams.as_ref().map(|_| "several streams"));
        for layer in &spec.layers {
            parts.insert(match &layer.mixer {
                Mixer::Attention(attention)
                    if attention.blocks.is_some() || attention.pools.is_some() =>
                {
                    "attention to chosen blocks of positions"
                }
                Mixer::Attention(_) => "attention",
                Mixer::GatedDelta(delta) if delta.kimi.is_some() => "Kimi delta attention",
                Mixer::GatedDelta(_) => "gated delta net",
                Mixer::ShortConv(_) => "short convolution",
                Mixer::Latent(latent) if latent.choice.is_some() => {
                    "latent attention to chosen positions"
                }
                Mixer::Latent(_) => "latent attention",
                Mixer::Pooled(pooled) if pooled.pools.is_some() => {
                    "attention to a window and pools"
                }
                Mixer::Pooled(_) => "",
                Mixer::StateSpace(_) => "Mamba-2",
                Mixer::Lightning(_) => "lightning attention",
                Mixer::Parallel(_) => "attention beside Mamba-2",
                Mixer::None => "",
            });
            parts.extend(matches!(layer.cache, CacheKind::Window { .. }).then_some("windows"));
            parts.extend(layer.experts().map(|_| "experts"));
            parts.extend(layer.ngrams.as_ref().map(|_| "tables of n-grams"));
            parts.extend(layer.residuals.as_ref().map(|_| "attention residuals"));
        }
    }
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

/// The types and quantisations of a family's cases: `f32, bf16, affine 4`.
fn weights(cases: &[Case]) -> String {
    let mut found: BTreeSet<String> = BTreeSet::new();
    for case in cases {
        let Some(quantization) = case.config["quantization"].as_object() else {
            found.insert(case.dtype.clone());
            continue;
        };
        let overrides = quantization.values().filter_map(Value::as_object);
        for format in overrides.chain([quantization]) {
            let mode = format.get("mode").and_then(Value::as_str).unwrap_or("affine");
            let bits = format.get("bits").and_then(Value::as_u64);
            found.insert(match bits.filter(|_| mode == "affine") {
                Some(bits) => format!("affine {bits}"),
                None => mode.to_owned(),
            });
        }
    }
    found.into_iter().collect::<Vec<_>>().join(", ")
}

fn family_table() -> String {
    let golden = golden();
    let mut table =
        "| `model_type` | Layers | Weights compared with the reference |\n|---|---|---|\n"
            .to_owned();
    for model_type in computed_types().into_iter().collect::<BTreeSet<_>>() {
        let cases = golden.get(model_type).map(Vec::as_slice).unwrap_or_default();
        assert!(!cases.is_empty(), "{model_type} has no golden values");
        writeln!(table, "| `{model_type}` | {} | {} |", layers(cases), weights(cases)).unwrap();
    }
    table
}

/// A model that people run, by its real dimensions.
struct KnownModel {
    name: String,
    layout: ModelLayout,
}

impl KnownModel {
    fn read_all() -> Vec<KnownModel> {
        let text = include_str!("../data/known_models.json");
        let known: Vec<Value> = serde_json::from_str(text).unwrap();
        let is_computed = |model: &&Value| {
            let model_type = model["config"]["model_type"].as_str().unwrap();
            computed_types().contains(&model_type)
        };
        known.iter().filter(is_computed).map(KnownModel::read).collect()
    }

    fn read(model: &Value) -> KnownModel {
        let mut config = model["config"].clone();
        config["quantization"] = json!({"bits": BITS, "group_size": GROUP_SIZE});
        let spec = model_spec(&config).unwrap();
        let is_tied = spec.head_table == HeadTable::Tied;
        let mut headers = TensorHeaders::new();
        for tensor in spec.tensors(is_tied).filter(|tensor| tensor.is_in(|_| false)) {
            let fits = tensor.shape.last().is_some_and(|width| width.is_multiple_of(GROUP_SIZE));
            if !tensor.is_quantizable || !fits {
                let element_type = match tensor.role {
                    TensorRole::RouterTable => ElementType::I32,
                    _ => ElementType::Bf16,
                };
                let header = TensorHeader { element_type, shape: tensor.shape.clone() };
                headers.insert(tensor.name.clone(), header);
                continue;
            }
            let is_router = tensor.role == TensorRole::Router;
            let bits = if is_router { ROUTER_BITS } else { BITS };
            if is_router {
                config["quantization"][tensor.module()] =
                    json!({"bits": bits, "group_size": GROUP_SIZE});
            }
            let (width, outer) = tensor.shape.split_last().unwrap();
            let with = |element_type, width: usize| TensorHeader {
                element_type,
                shape: [outer, &[width]].concat(),
            };
            let module = tensor.module();
            headers.insert(format!("{module}.weight"), with(ElementType::U32, width * bits / 32));
            for name in ["scales", "biases"] {
                let header = with(ElementType::Bf16, width / GROUP_SIZE);
                headers.insert(format!("{module}.{name}"), header);
            }
        }
        let name = model["name"].as_str().unwrap().to_owned();
        let spec = model_spec(&config).unwrap();
        let layout = spec.layout(&headers).unwrap_or_else(|report| panic!("{name}: {report}"));
        KnownModel { name, layout }
    }

    /// Returns the bytes of the weights, and of the caches of [`CONTEXT_TOKENS`].
    fn bytes(&self) -> [u64; 2] {
        let [alone] = &self.layout.tensor_shards(&Shares::even(1))[..] else { panic!("one rank") };
        let cost = alone.cache;
        let window_blocks = cost.window_blocks_max(STEP_TOKENS) as u64;
        let window_tokens = CONTEXT_TOKENS.min(window_blocks * u64::from(KV_BLOCK_TOKENS));
        let cache = cost.bytes_per_token * CONTEXT_TOKENS
            + cost.window_bytes_per_token * window_tokens
            + cost.state_bytes;
        [alone.weights_bytes, cache]
    }

    /// Returns the smallest memory that holds the model with its context; `None` if all are too
    /// small.
    fn memory(&self) -> Option<u64> {
        let needed: u64 = self.bytes().iter().sum();
        let fits = |gigabytes: &u64| needed <= gigabytes * 1_000_000_000 * USABLE_PERCENT / 100;
        MEMORIES.into_iter().find(fits)
    }
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

fn size_table(models: &[KnownModel]) -> String {
    let mut table = "| Model, 4 bit | Weights | Cache of 32k tokens | Memory of all machines |\n\
        |---|---|---|---|\n"
        .to_owned();
    for model in models {
        let [weights, cache] = model.bytes().map(gigabytes);
        let memory =
            model.memory().map_or("above 2,048 GB".to_owned(), |memory| format!("{memory} GB"));
        writeln!(table, "| {} | {weights} | {cache} | {memory} |", model.name).unwrap();
    }
    table
}

fn largest_table(models: &[KnownModel]) -> String {
    let mut table = "| Memory of all machines | Largest of these models |\n|---|---|\n".to_owned();
    for memory in MEMORIES {
        let fitting = models.iter().filter(|model| model.memory().is_some_and(|it| it <= memory));
        let largest = fitting.max_by_key(|model| model.bytes()[0]);
        let name = largest.map_or("none", |model| &model.name);
        writeln!(table, "| {memory} GB | {name} |").unwrap();
    }
    table
}

#[test]
fn the_page_says_what_the_descriptions_say() {
    let models = KnownModel::read_all();
    let tables = [
        ("families", family_table()),
        ("sizes", size_table(&models)),
        ("largest", largest_table(&models)),
    ];
    pages::check("models.md", &tables, env!("CARGO_PKG_NAME"));
}

/// Tokens of cases in 16 bits are not compared with the reference's: rounding decides too many.
#[test]
fn tokens_of_every_type_are_compared_with_plain_and_with_quantised_weights() {
    let golden = golden();
    for model_type in computed_types() {
        let cases = golden[model_type].iter().filter(|case| case.dtype == "f32");
        let (quantised, plain): (Vec<&Case>, Vec<&Case>) = cases.partition(|case| {
            ["quantization", "quantization_config"].iter().any(|it| case.config.get(it).is_some())
        });
        assert!(!plain.is_empty(), "{model_type} has no plain case in f32");
        assert!(!quantised.is_empty(), "{model_type} has no quantised case in f32");
    }
}
