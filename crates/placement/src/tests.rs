//! Placements as properties, the table of published sizes, and the checkpoint in this repository.

use std::collections::BTreeMap;
use std::path::Path;

use jackalope_families::model_spec;
use jackalope_protocol::CacheCost;
use jackalope_protocol::split::{HeadCounts, VOCAB_UNIT};
use jackalope_spec::{
    CacheKind, Division, ElementType, LayerLayout, ModelLayout, RankShard, StatedFormat,
    TensorRole, WeightPart,
};
use proptest::prelude::*;

use jackalope_protocol::KV_BLOCK_TOKENS;

use super::*;

const GIB: u64 = 1 << 30;

/// Creates a dense model of these sizes without a file, quantised or not.
fn dense(
    (hidden, inner, layers): (usize, usize, usize),
    (heads, kv_heads, head_dim): (usize, usize, usize),
    bits: u32,
) -> PlacementModel {
    let vocab = 32_000;
    let group = if bits < 16 { 64 } else { 1 };
    // Including a scale and a bias of two bytes each for 64 weights.
    let half_bits = if bits < 16 { 2 * bits + 1 } else { 2 * bits };
    let bytes = |rows: usize, columns: usize| (rows * columns) as u64 * u64::from(half_bits) / 16;
    let part = |role, division, bytes| WeightPart { role, division, bytes };
    let counts = HeadCounts::new(heads, kv_heads, head_dim, group);
    let units = Division::Units { full: inner, unit: if bits < 16 { 64 } else { 32 } };
    let rows = Division::Units { full: vocab, unit: VOCAB_UNIT };
    let layer = LayerLayout {
        parts: vec![
            part(TensorRole::Mixer, Division::Heads(counts), 2 * bytes(heads * head_dim, hidden)),
            part(
                TensorRole::Mixer,
                Division::KvHeads(counts),
                2 * bytes(kv_heads * head_dim, hidden),
            ),
            part(TensorRole::Mlp, units, 3 * bytes(inner, hidden)),
            part(TensorRole::Norm, Division::Whole, 4 * hidden as u64),
        ],
        cache: CacheKind::Positions { elements_per_kv_head: 2 * head_dim, shared_elements: 0 },
        whole_state_elements: 0,
        state_heads: None,
        active_experts: 1.0,
        heads: counts,
        inner_units: BTreeMap::new(),
        source_layer: None,
    };
    let outside = vec![
        part(TensorRole::Embedding, rows, bytes(vocab, hidden)),
        part(TensorRole::Head, rows, bytes(vocab, hidden)),
        part(TensorRole::Norm, Division::Whole, 2 * hidden as u64),
    ];
    let layers = vec![layer; layers];
    PlacementModel {
        architecture: "llama".to_owned(),
        hidden_size: hidden,
        beside_size: 0,
        queries_size: heads * head_dim,
        inner_size: inner,
        vocab_size: vocab,
        context_tokens: 131_072,
        quantization: (bits < 16).then_some(StatedFormat { bits, group_size: 64 }),
        layout: ModelLayout::of_parts(ElementType::Bf16, false, outside, layers),
    }
}

fn heads(model: &PlacementModel) -> HeadCounts {
    model.layout.layers[0].heads
}

fn llama_70b() -> PlacementModel {
    dense((8192, 28_672, 80), (64, 8, 128), 4)
}

fn offers(free_bytes: &[u64]) -> Vec<NodeOffer> {
    let offer = |(idx, &bytes): (usize, &u64)| NodeOffer::new(format!("mac{idx}"), bytes);
    free_bytes.iter().enumerate().map(offer).collect()
}

fn place_on(
    model: &PlacementModel,
    free_bytes: &[u64],
    constraints: PlacementConstraints,
) -> Result<Placement, PlacementRefusal> {
    let links = Links::usual(free_bytes.len(), LinkKind::Ethernet);
    place(model, &offers(free_bytes), &links, constraints)
}

fn context(tokens: u32) -> PlacementConstraints {
    PlacementConstraints { context_tokens: Some(tokens), ..PlacementConstraints::default() }
}

fn tensor(shares: &[u32]) -> Split {
    Split::Tensor(shares.to_vec())
}

#[test]
fn the_fewest_machines_are_taken_and_keep_their_order() {
    let model = llama_70b();
    let placement = place_on(&model, &[24 * GIB, 48 * GIB, 24 * GIB], context(8192)).unwrap();
    let idxs: Vec<usize> = placement.ranks.iter().map(|rank| rank.offer_idx).collect();
    assert_eq!(idxs, [1]);
    let placement = place_on(&model, &[24 * GIB, 8 * GIB, 24 * GIB], context(4096)).unwrap();
    let idxs: Vec<usize> = placement.ranks.iter().map(|rank| rank.offer_idx).collect();
    assert_eq!((idxs, placement.split), (vec![0, 2], tensor(&[1, 1])));
    assert_eq!(placement.options.len(), 5);
    assert!(!placement.options[0].fits());
    let wanted = "2 of 3 machines are the fewest that hold it";
    assert_eq!(placement.reason.to_string(), wanted);
}

#[test]
fn unequal_machines_get_unequal_shares() {
    let placement = place_on(&llama_70b(), &[32 * GIB, 16 * GIB], context(4096)).unwrap();
    assert_eq!(placement.split, tensor(&[2, 1]));
    let weights: Vec<u64> = placement.ranks.iter().map(|it| it.need.weights_bytes).collect();
    let ratio = weights[0] as f64 / weights[1] as f64;
    assert!((1.6..2.4).contains(&ratio), "{weights:?}");
}

#[test]
fn a_refusal_says_what_is_missing_and_what_would_fit() {
    let model = llama_70b();
    let refusal = place_on(&model, &[24 * GIB, 20 * GIB], context(131_072)).unwrap_err();
    let tokens = refusal.context_tokens_max.expect("a shorter context fits");
    assert!(place_on(&model, &[24 * GIB, 20 * GIB], context(tokens)).is_ok());
    let longer = context(tokens + KV_BLOCK_TOKENS);
    assert!(place_on(&model, &[24 * GIB, 20 * GIB], longer).is_err());
    let missing: u64 = refusal.nodes.iter().map(NodeShortage::missing_bytes).sum();
    assert_eq!(missing, refusal.missing_bytes);
    let text = refusal.to_string();
    assert!(text.contains("mac0: needs ") && text.ends_with("or add a machine"), "{text}");
    let hopeless = place_on(&model, &[8 * GIB], context(1)).unwrap_err();
    assert_eq!(hopeless.context_tokens_max, None);
    assert!(hopeless.to_string().contains("fewer bits"), "{hopeless}");
    let nobody = place_on(&model, &[], context(1)).unwrap_err().to_string();
    assert!(nobody.starts_with("there is no machine"), "{nobody}");
}

#[test]
fn a_refusal_names_the_other_split_if_that_fits() {
    let model = llama_70b();
    let memory = [26 * GIB, 13 * GIB, 9 * GIB];
    for num_machines in [None, Some(3)] {
        let with = |split, tokens| PlacementConstraints {
            context_tokens: Some(tokens),
            num_machines,
            split,
        };
        let refused = |split, tokens| {
            place_on(&model, &memory, with(split, tokens)).expect_err("the context is too long")
        };
        let longest = |split| refused(split, 131_072).context_tokens_max.expect("some fit");
        let kinds = [SplitKind::Tensor, SplitKind::Pipeline];
        let by_kind = kinds.map(|kind| longest(Some(kind)));
        let larger = usize::from(by_kind[0] < by_kind[1]);
        assert_ne!(by_kind[0], by_kind[1]);
        assert_eq!(longest(None), by_kind[larger]);
        let refusal = refused(Some(kinds[1 - larger]), by_kind[larger]);
        assert_eq!(refusal.fitting_split, Some(kinds[larger]));
        let hint = format!("hint: pass `--split {}`, with which it fits", kinds[larger].name());
        assert!(refusal.to_string().ends_with(&hint), "{refusal}");
        assert_eq!(refused(None, 131_072).fitting_split, None);
    }
}

/// The largest models that two Macs hold at four bits, as published by mlx-lm-ring: memory of both
/// together, and size of the checkpoint, in gigabytes. macOS lets the GPU use three quarters; the
/// last row needs a raised limit.
const PUBLISHED: [(u64, u64, (u64, u64)); 4] =
    [(32, 24, (3, 4)), (48, 36, (3, 4)), (64, 48, (3, 4)), (128, 100, (4, 5))];

#[test]
fn the_published_table_of_largest_models_holds() {
    for (total_gib, model_gb, (part, of)) in PUBLISHED {
        let sized = |bytes: u64| {
            let mut model = llama_70b();
            let all = model.weights_bytes();
            let ModelLayout { mut outside, mut layers, .. } = model.layout;
            let inside = layers.iter_mut().flat_map(|layer| &mut layer.parts);
            for part in inside.chain(&mut outside) {
                part.bytes = (u128::from(part.bytes) * u128::from(bytes) / u128::from(all)) as u64;
            }
            model.layout = ModelLayout::of_parts(ElementType::Bf16, false, outside, layers);
            model
        };
        let free = [total_gib * GIB / 2 * part / of; 2];
        let bytes = model_gb * 1_000_000_000;
        let constraints = PlacementConstraints { num_machines: Some(2), ..context(2048) };
        let near = place_on(&sized(bytes / 100 * 93), &free, constraints);
        assert!(near.is_ok(), "{total_gib} GiB: {}", near.unwrap_err());
        assert!(
            place_on(&sized(bytes / 100 * 110), &free, constraints).is_err(),
            "{total_gib} GiB"
        );
    }
}

#[test]
fn more_machines_wait_more_and_read_less() {
    let model = llama_70b();
    let mut nodes = offers(&[64 * GIB; 4]);
    for node in &mut nodes {
        node.memory_bytes_per_s = Some(400_000_000_000);
        node.device = Device::Gpu;
    }
    let speed = |size: usize, kind| {
        let split = Some(SplitKind::Tensor);
        let constraints = PlacementConstraints { num_machines: Some(size), split, ..context(4096) };
        place(&model, &nodes, &Links::usual(4, kind), constraints).unwrap().speed.unwrap()
    };
    let alone = speed(1, LinkKind::Rdma);
    assert_eq!(alone.decode_waiting, 0.0);
    // 37 GB at 400 GB/s, of which two thirds are reached.
    assert!((5.0..10.0).contains(&alone.decode_tokens_per_s), "{alone:?}");
    let two = speed(2, LinkKind::Rdma);
    assert!(1.6 * alone.decode_tokens_per_s < two.decode_tokens_per_s, "{two:?}");
    assert!(alone.prefill_tokens_per_s < two.prefill_tokens_per_s);
    let slow = speed(4, LinkKind::Ethernet);
    assert!(two.decode_waiting < slow.decode_waiting);
    assert!(slow.decode_tokens_per_s < speed(4, LinkKind::Rdma).decode_tokens_per_s);
}

#[test]
fn fast_links_make_parts_of_layers_worth_it_and_slow_ones_whole_layers() {
    let model = llama_70b();
    let mut nodes = offers(&[64 * GIB; 2]);
    for node in &mut nodes {
        node.memory_bytes_per_s = Some(400_000_000_000);
        node.device = Device::Gpu;
    }
    let on = |kind, split| {
        let constraints = PlacementConstraints { num_machines: Some(2), split, ..context(4096) };
        place(&model, &nodes, &Links::usual(2, kind), constraints).unwrap()
    };
    let fast = on(LinkKind::Rdma, None);
    assert_eq!(SplitKind::of(&fast.split), SplitKind::Tensor);
    let slow = on(LinkKind::Ethernet, None);
    assert_eq!(slow.split, Split::Pipeline(vec![40, 40]));
    let requested = on(LinkKind::Ethernet, Some(SplitKind::Tensor));
    assert_eq!(SplitKind::of(&requested.split), SplitKind::Tensor);
    let seconds = |placement: &Placement| placement.speed.unwrap().usual_request_s();
    assert!(seconds(&slow) < seconds(&requested));
    // One machine has nothing to divide, whatever is requested.
    let constraints = PlacementConstraints { split: Some(SplitKind::Pipeline), ..context(4096) };
    let alone = place(&model, &nodes, &Links::usual(2, LinkKind::Rdma), constraints).unwrap();
    assert_eq!(alone.split, tensor(&[1]));
}

/// Offers machines with 64 GiB whose GPUs read memory at these speeds, in GB/s.
fn macs(speeds: &[u64]) -> Vec<NodeOffer> {
    let mut nodes = offers(&vec![64 * GIB; speeds.len()]);
    for (node, speed) in nodes.iter_mut().zip(speeds) {
        node.memory_bytes_per_s = Some(speed * 1_000_000_000);
        node.device = Device::Gpu;
    }
    nodes
}

#[test]
fn one_machine_that_is_faster_than_two_over_a_slow_link_is_named() {
    let model = llama_70b();
    let found = |nodes: &[NodeOffer], links: &Links, split| {
        let num_machines = Some(nodes.len());
        let constraints = PlacementConstraints { num_machines, split, ..context(4096) };
        let placement = place(&model, nodes, links, constraints).unwrap();
        let fewer = faster_with_fewer(&model, nodes, links, constraints, &placement);
        (placement.speed, fewer)
    };
    let equal = macs(&[400, 400]);
    let tensor = Some(SplitKind::Tensor);
    let slow = Links::usual(2, LinkKind::Ethernet);
    let (placed, fewer) = found(&equal, &slow, tensor);
    let fewer = fewer.expect("the link costs more than the second machine gains");
    assert_eq!((&fewer.option.offer_idxs[..], &fewer.names[..]), (&[0][..], &["mac0".into()][..]));
    assert!(fewer.usual_request_s < placed.unwrap().usual_request_s());
    let text = fewer.to_string();
    assert!(
        text.starts_with("mac0 alone is expected to be faster than these 2 machines: "),
        "{text}"
    );
    assert_eq!(fewer.hint(), "leave out the other machines: `--hosts mac0`");
    assert_eq!(found(&equal, &Links::usual(2, LinkKind::Rdma), tensor).1, None);
    // Stages read a prompt at the same time, and their connection hardly matters.
    assert_eq!(found(&equal, &slow, Some(SplitKind::Pipeline)).1, None);

    // One of three links is slow, and all machines wait for it.
    let mut links = Links::usual(3, LinkKind::Rdma);
    links.set(0, 2, LinkSpeed::usual(LinkKind::Ethernet));
    let fewer = found(&macs(&[400, 400, 400]), &links, tensor).1.unwrap();
    assert_eq!(fewer.names, ["mac0", "mac1"]);
    assert!(fewer.to_string().starts_with("mac0, mac1 are expected"), "{fewer}");
    assert!(fewer.hint().ends_with("`--hosts mac0,mac1`"), "{}", fewer.hint());

    // The second of two machines with equal memory is much faster alone.
    let unequal = macs(&[60, 800]);
    let rdma = Links::usual(2, LinkKind::Rdma);
    assert_eq!(found(&unequal, &rdma, None).1.unwrap().names, ["mac1"]);
    // It no longer holds the model alone.
    let mut small = unequal;
    small[1].usable_bytes = 24 * GIB;
    assert_eq!(found(&small, &rdma, None).1, None);
    small[0].memory_bytes_per_s = None;
    assert_eq!(found(&small, &slow, tensor), (None, None));
}

/// Turns the feed-forward blocks of a model into `num_experts` experts, of which a token passes
/// `num_active`.
fn with_experts(mut model: PlacementModel, num_experts: u64, num_active: u64) -> PlacementModel {
    let ModelLayout { outside, mut layers, .. } = model.layout;
    for layer in &mut layers {
        layer.active_experts = num_active as f64 / num_experts as f64;
        for part in layer.parts.iter_mut().filter(|part| part.role == TensorRole::Mlp) {
            part.role = TensorRole::Experts;
            part.bytes = part.bytes / num_active * num_experts;
        }
    }
    model.layout = ModelLayout::of_parts(ElementType::Bf16, false, outside, layers);
    model
}

#[test]
fn eight_sequences_share_the_weights_of_a_dense_model_and_few_experts() {
    let dense_model = dense((2048, 6144, 24), (16, 4, 128), 4);
    // As many weights for each token, out of sixteen times as many.
    let mixture = with_experts(dense_model.clone(), 128, 8);
    let speed = |model: &PlacementModel, num_machines, split, kind| {
        let constraints = PlacementConstraints {
            num_machines: Some(num_machines),
            split: Some(split),
            ..context(256)
        };
        let links = Links::usual(2, kind);
        place(model, &macs(&[400, 400]), &links, constraints).unwrap().speed.unwrap()
    };
    let gain = |speed: Speed| speed.batch_decode_tokens_per_s / speed.decode_tokens_per_s;
    let alone = |model| speed(model, 1, SplitKind::Tensor, LinkKind::Rdma);
    let (one, of_mixture) = (alone(&dense_model), alone(&mixture));
    assert!((0.99..1.01).contains(&(one.decode_tokens_per_s / of_mixture.decode_tokens_per_s)));
    assert!((7.5..8.0).contains(&gain(one)), "{one:?}");
    // A batch reads 1 - (15/16)^8, 40 %, of the experts: 6.5 times those of one token.
    let shard = mixture.whole();
    let read = shard.read_bytes(BATCH_SEQUENCES) / shard.active_bytes as f64;
    assert!((4.0..6.5).contains(&read), "{read}");
    assert!((0.98..1.0).contains(&(gain(of_mixture) * read / 8.0)), "{of_mixture:?}, {read}");
    // A processor computes eight tokens for longer than it reads the weights.
    let mut slow = macs(&[40, 40]);
    for node in &mut slow {
        node.device = Device::Cpu;
    }
    let on_cpus = |num_machines, split| {
        let num_machines = Some(num_machines);
        let constraints = PlacementConstraints { num_machines, split: Some(split), ..context(256) };
        let links = Links::usual(2, LinkKind::Thunderbolt);
        place(&dense_model, &slow, &links, constraints).unwrap().speed.unwrap()
    };
    let on_cpu = on_cpus(1, SplitKind::Tensor);
    assert!((2.0..4.0).contains(&gain(on_cpu)), "{on_cpu:?}");

    // The stages of a pipeline compute different sequences at the same time, but each step reads
    // the weights of its stages: two processors gain, and two devices that wait for memory do not.
    let stages = on_cpus(2, SplitKind::Pipeline);
    assert!(stages.decode_tokens_per_s < on_cpu.decode_tokens_per_s);
    let faster = stages.batch_decode_tokens_per_s / on_cpu.batch_decode_tokens_per_s;
    assert!((1.7..2.0).contains(&faster), "{on_cpu:?}, {stages:?}");
    let stages = speed(&dense_model, 2, SplitKind::Pipeline, LinkKind::Thunderbolt);
    assert!((7.5..8.0).contains(&gain(stages)), "{stages:?}");
    assert!(stages.batch_decode_tokens_per_s < one.batch_decode_tokens_per_s);
    // Parts of layers are read at the same time, but eight rows take longer to exchange than one.
    let large = |num_machines| {
        speed(&llama_70b(), num_machines, SplitKind::Tensor, LinkKind::Rdma)
            .batch_decode_tokens_per_s
    };
    assert!((1.5..2.0).contains(&(large(2) / large(1))), "{} {}", large(1), large(2));
    let parts = speed(&dense_model, 2, SplitKind::Tensor, LinkKind::Ethernet);
    assert!((2.0..7.0).contains(&gain(parts)), "{parts:?}");
}

#[test]
fn whole_layers_fit_where_parts_do_not() {
    // Every machine would hold the keys and values of the only head.
    let model = dense((1024, 1024, 12), (8, 1, 128), 4);
    let stages = dealing::needs(&model, &Split::Pipeline(vec![6, 6]), 100_000);
    let most = stages.iter().map(RankNeed::total).max().unwrap();
    let free = [RESERVE_BYTES + most; 2];
    let placed =
        |split| place_on(&model, &free, PlacementConstraints { split, ..context(100_000) });
    assert!(placed(Some(SplitKind::Tensor)).is_err());
    assert_eq!(placed(None).unwrap().split, Split::Pipeline(vec![6, 6]));
}

#[test]
fn small_shares_fit_where_finer_ones_do_not() {
    // Six heads are never divided: shares in the proportion of these memories, however fine, do not
    // fit.
    let model = dense((448, 896, 2), (6, 6, 128), 8);
    let constraints = || PlacementConstraints { split: Some(SplitKind::Tensor), ..context(769) };
    let needs = dealing::needs(&model, &tensor(&[8, 3, 1]), 769);
    let free: Vec<u64> = needs.iter().map(|need| RESERVE_BYTES + need.total()).collect();
    let caps: Vec<u64> = needs.iter().map(RankNeed::total).collect();
    let placement = place_on(&model, &free, constraints()).unwrap();
    assert!(search::fits(&dealing::needs(&model, &placement.split, 769), &caps));
}

#[test]
fn more_machines_than_layers_make_no_pipeline() {
    let model = dense((1024, 1024, 2), (16, 8, 64), 4);
    let constraints = PlacementConstraints {
        num_machines: Some(3),
        split: Some(SplitKind::Pipeline),
        ..context(512)
    };
    let refusal = place_on(&model, &[4 * GIB; 3], constraints).unwrap_err().to_string();
    assert!(refusal.contains("more machines than stages"), "{refusal}");
}

#[test]
fn stages_of_the_shipped_checkpoint_hold_what_they_load() {
    let model = shipped();
    assert_eq!(model.num_layers(), 4);
    let table = model.bytes_of(TensorRole::Embedding);
    let norm = 256 * 2;
    let layer = (model.weights_bytes() - table - norm) / 4;
    let needs = dealing::needs(&model, &Split::Pipeline(vec![1, 2, 1]), 256);
    let weights: Vec<u64> = needs.iter().map(|need| need.weights_bytes).collect();
    // The table is both embedding and head.
    assert_eq!(weights, [layer + norm + table, 2 * layer + norm, layer + norm + table]);
    let kv: Vec<u64> = needs.iter().map(|need| need.kv_bytes).collect();
    let of_layer = 256 * model.kv_bytes_per_token() / 4;
    assert_eq!(kv, [of_layer, 2 * of_layer, of_layer]);
    let alone = dealing::needs(&model, &Split::Pipeline(vec![4]), 256)[0].weights_bytes;
    assert_eq!(alone, model.weights_bytes());
}

#[test]
fn speed_is_not_guessed_for_memory_that_is_not_known() {
    let placement = place_on(&llama_70b(), &[64 * GIB], context(4096)).unwrap();
    assert_eq!(placement.speed, None);
}

fn shipped() -> PlacementModel {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/jackalope-mini");
    PlacementModel::read(&dir).unwrap()
}

#[test]
fn the_shipped_checkpoint_is_counted_to_the_byte() {
    let model = shipped();
    // `total_size` of its model.safetensors.index.json.
    assert_eq!(model.weights_bytes(), 1_627_136);
    assert!(model.layout.is_tied);
    assert_eq!(heads(&model), HeadCounts { heads: 8, kv_heads: 4, heads_unit: 2 });
    assert_eq!(model.quantization, Some(StatedFormat { bits: 4, group_size: 64 }));
    assert_eq!(model.context_tokens, 2048);
    // Four layers, four heads of 32, keys and values of two bytes.
    assert_eq!(model.kv_bytes_per_token(), 4 * 4 * 32 * 2 * 2);
    // 4.5 bits for each of 2048 × 256 embeddings.
    assert_eq!(model.bytes_of(TensorRole::Embedding), 2048 * 256 * 9 / 16);
    // Norms: two of 256 and two of 32 in each layer, one of 256 at the end, two bytes each.
    assert_eq!(model.replicated_bytes(), (4 * (2 * 256 + 2 * 32) + 256) * 2);
}

#[test]
fn two_ranks_of_the_shipped_checkpoint_hold_halves() {
    let model = shipped();
    let needs = dealing::needs(&model, &tensor(&[1, 1]), 256);
    let cut = model.weights_bytes() - model.replicated_bytes();
    for need in &needs {
        assert_eq!(need.weights_bytes, cut / 2 + model.replicated_bytes());
        assert_eq!(need.kv_bytes, 256 * model.kv_bytes_per_token() / 2);
    }
}

#[test]
fn windows_take_what_they_and_a_row_need() {
    let cache = CacheCost {
        bytes_per_token: 2,
        window_bytes_per_token: 100,
        window_tokens: 128,
        state_bytes: 0,
    };
    let shard = RankShard { cache, ..RankShard::default() };
    let kv_bytes = |tokens| dealing::need(&shipped(), &shard, tokens).kv_bytes;
    assert_eq!(kv_bytes(256), 256 * 102);
    // A row of 512 and the 127 positions before it touch four blocks at most.
    assert_eq!(kv_bytes(100 * 256), 100 * 256 * 2 + 4 * 256 * 100);
}

/// Returns the first case of the golden values of a family, with the layout of another model.
fn golden(family: &str) -> PlacementModel {
    let file = format!("../models/tests/data/golden/{family}.json");
    let text = std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let golden: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let spec = model_spec(&golden["cases"][0]["config"]).unwrap();
    PlacementModel::new(&spec, shipped().layout)
}

#[test]
fn what_goes_beside_the_stream_takes_memory() {
    // Three more streams of 128, and 32 for each of five layers; a second embedding alone; streams
    // of hyper-connections; nothing.
    for (family, beside) in
        [("gemma3n", 3 * 128 + 5 * 32), ("gemma4", 5 * 32), ("glm5_next", 2 * 128), ("gemma2", 0)]
    {
        assert_eq!(golden(family).beside_size, beside, "{family}");
    }
    let (plain, mut wide) = (llama_70b(), llama_70b());
    wide.beside_size = 10_000;
    let pipeline = Split::Pipeline(vec![40, 40]);
    let needs = |model: &PlacementModel| dealing::needs(model, &pipeline, 4096);
    for (wide, plain) in needs(&wide).iter().zip(needs(&plain)) {
        // Twice for each of 512 rows, in f32.
        assert_eq!(wide.total() - plain.total(), 2 * 512 * 10_000 * 4);
    }
}

fn models() -> impl Strategy<Value = PlacementModel> {
    let sizes = (1_usize..20, 1_usize..40, 1_usize..9);
    let heads = (1_usize..9, 1_usize..5, prop::sample::select(vec![32_usize, 64, 128]));
    (sizes, heads, prop::sample::select(vec![4_u32, 8, 16])).prop_map(
        |((hidden, inner, layers), (kv_heads, group, head_dim), bits)| {
            let sizes = (64 * hidden, 64 * inner, layers);
            dense(sizes, (kv_heads * group, kv_heads, head_dim), bits)
        },
    )
}

/// Returns how many bytes a part may deviate because cuts are made at whole units, plus what every
/// rank needs anyway.
fn largest_units(model: &PlacementModel, tokens: u32) -> u64 {
    let kv = u64::from(tokens.next_multiple_of(256)) * model.kv_bytes_per_token() / 4 * 5;
    let heads = heads(model);
    let head_units =
        (heads.heads / heads.heads_unit.max(heads.heads / heads.kv_heads)).max(1) as u64;
    let attention = model.bytes_of(TensorRole::Mixer);
    let inner = model.inner_size.div_ceil(64) as u64;
    (attention + kv) / head_units
        + model.bytes_of(TensorRole::Mlp) / inner
        + (model.bytes_of(TensorRole::Head) * 2) / 1000
        + 3
}

proptest! {
    #[test]
    fn every_byte_is_held_and_only_shared_ones_twice(
        model in models(), shares in prop::collection::vec(1_u32..50, 1..7),
    ) {
        let needs = dealing::needs(&model, &tensor(&shares), 256);
        let held: u64 = needs.iter().map(|need| need.weights_bytes).sum();
        let num_ranks = shares.len() as u64;
        let once = model.weights_bytes() + (num_ranks - 1) * model.replicated_bytes();
        if shares.len() <= heads(&model).kv_heads {
            prop_assert_eq!(held, once);
        } else {
            // If there are more ranks than key-value heads, several ranks hold the same ones.
            let is_keys = |part: &&WeightPart| matches!(part.division, Division::KvHeads(_));
            let keys = model.layout.parts().find(is_keys).unwrap().bytes;
            prop_assert!((once..=once + num_ranks * keys).contains(&held));
        }
        let kv: u64 = needs.iter().map(|need| need.kv_bytes).sum();
        prop_assert!(256 * model.kv_bytes_per_token() <= kv);
    }

    #[test]
    fn no_rank_takes_more_than_it_may_and_a_refusal_means_that_nothing_fits(
        model in models(),
        parts in prop::collection::vec(1_u64..100, 1..5),
        total_percent in 60_u64..180,
        tokens in 1_u32..2000,
    ) {
        // Memory close to what is needed, divided at random.
        let alone = dealing::needs(&model, &tensor(&[1]), tokens)[0];
        let fixed = alone.overhead_bytes - alone.kv_bytes / 4 + model.replicated_bytes();
        let cut = alone.total() - fixed;
        let sum: u64 = parts.iter().sum();
        let free: Vec<u64> = parts
            .iter()
            .map(|part| RESERVE_BYTES + fixed + cut * total_percent * part / sum / 100)
            .collect();
        let room: u64 = parts.iter().map(|part| cut * total_percent * part / sum / 100).sum();
        let num_ranks = free.len() as u64;
        let split = Some(SplitKind::Tensor);
        let constraints = PlacementConstraints { split, ..context(tokens) };
        match place_on(&model, &free, constraints) {
            Ok(placement) => {
                for rank in &placement.ranks {
                    prop_assert!(rank.need.total() <= rank.usable_bytes);
                }
                prop_assert!(tokens <= placement.context_tokens_max);
                prop_assert!(cut <= room, "more was placed than there is room for");
                let smaller = placement.options.iter().filter(|it| it.offer_idxs.len() < placement.ranks.len());
                prop_assert!(smaller.into_iter().all(|it| !it.fits()));
            }
            Err(refusal) => {
                prop_assert!(0 < refusal.missing_bytes);
                let slack = num_ranks * largest_units(&model, tokens);
                let shared = if heads(&model).kv_heads < free.len() { cut } else { 0 };
                prop_assert!(room < cut + slack + shared, "{room} of room for {cut}, slack {slack}");
                // No small shares fit either.
                let sum_max = search::GRID_SUM_MAX[free.len()];
                for a in 1..10_u32 {
                    for b in 1..10 {
                        let shares: Vec<u32> = [a, b, 1, 1][..free.len()].to_vec();
                        prop_assert!(shares.iter().sum::<u32>() <= sum_max || free.len() == 1);
                        let needs = dealing::needs(&model, &tensor(&shares), tokens);
                        let caps: Vec<u64> = free.iter().map(|it| it - RESERVE_BYTES).collect();
                        prop_assert!(!search::fits(&needs, &caps), "{shares:?} fit");
                    }
                }
            }
        }
    }

    #[test]
    fn stages_leave_the_fullest_machine_the_most(
        model in models(),
        parts in prop::collection::vec(1_u64..100, 1..4),
        tokens in 1_u32..2000,
    ) {
        let alone = dealing::needs(&model, &tensor(&[1]), tokens)[0].total();
        let caps: Vec<u64> = parts.iter().map(|part| alone * part / 100 + 1).collect();
        let fullest = |split: &Split| {
            let needs = dealing::needs(&model, split, tokens);
            let fill = needs.iter().zip(&caps).map(|(need, cap)| need.total() as f64 / *cap as f64);
            fill.fold(0.0, f64::max)
        };
        let found = search::best(&model, SplitKind::Pipeline, &caps, tokens);
        let num_layers = u32::try_from(model.num_layers()).unwrap();
        let mut ways = Vec::new();
        for a in 1..=num_layers {
            match caps.len() {
                1 => ways.push(vec![num_layers]),
                2 if a < num_layers => ways.push(vec![a, num_layers - a]),
                3 => ways.extend((1..num_layers).filter(|b| a + b < num_layers).map(|b| {
                    vec![a, b, num_layers - a - b]
                })),
                _ => {}
            }
        }
        let best = ways.into_iter().map(|layers| fullest(&Split::Pipeline(layers)));
        match best.min_by(f64::total_cmp) {
            Some(best) => prop_assert_eq!(fullest(&found.unwrap().0), best),
            None => prop_assert!(found.is_none()),
        }
    }

    #[test]
    fn more_memory_never_hurts(
        model in models(),
        free in prop::collection::vec(0_u64..1000, 1..5),
        node in 0_usize..4,
        more in 1_u64..200,
    ) {
        let alone = dealing::needs(&model, &tensor(&[1]), 1024)[0].total();
        let bytes = |part: u64| RESERVE_BYTES + alone * part / 700;
        let mut free: Vec<u64> = free.into_iter().map(bytes).collect();
        let before = place_on(&model, &free, context(1024));
        let node = node % free.len();
        free[node] += alone * more / 700;
        let after = place_on(&model, &free, context(1024));
        if let Ok(before) = before {
            let after = after.expect("it fitted with less");
            prop_assert!(after.ranks.len() <= before.ranks.len());
        }
    }
}

#[test]
fn one_of_something_is_singular_in_messages() {
    let requested = |num_machines| Reason::Requested { num_machines }.to_string();
    assert_eq!(requested(1), "the command asks for 1 machine");
    assert_eq!(requested(2), "the command asks for 2 machines");
    let cut = CheckpointError::FileSize { path: "m".into(), expected_bytes: 9, found_bytes: 1 };
    assert_eq!(cut.to_string(), "m: 1 byte, expected 9\nhint: copy or fetch it again");
}

#[test]
fn a_wrong_shape_suggests_fetching_config_and_weights() {
    let hint = |problem| {
        let report = jackalope_spec::CheckReport { problems: vec![problem] };
        let said = CheckpointError::Tensors { dir: "m".into(), report }.to_string();
        said.split_once("\nhint: ").expect("a hint").1.to_owned()
    };
    let name = || "model.norm.weight".to_owned();
    let missing = jackalope_spec::TensorProblem::Missing { name: name(), shape: vec![8] };
    assert_eq!(hint(missing), "copy or fetch it again");
    let (found, expected) = (vec![4], vec![8]);
    let shape = jackalope_spec::TensorProblem::Shape { name: name(), found, expected };
    assert!(hint(shape).starts_with("config.json contradicts the weights; fetch both again"));
}
