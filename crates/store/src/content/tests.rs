//! A change of any byte changes the identity and is found; nothing else changes the identity.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use jackalope_testing::Scratch;
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

/// Header of a weight file with tensors `t0`, `t1` … of these sizes.
fn head(sizes: &[usize]) -> Vec<u8> {
    let mut at = 0;
    let entries = sizes.iter().enumerate().map(|(idx, size)| {
        let begin = at;
        at += size;
        format!(r#""t{idx}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{begin},{at}]}}"#)
    });
    let header = format!("{{{}}}", entries.collect::<Vec<_>>().join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file
}

/// A complete weight file with tensors of these sizes.
fn weights(sizes: &[usize]) -> Vec<u8> {
    let mut file = head(sizes);
    let total: usize = sizes.iter().sum();
    file.extend((0..total).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 13) as u8));
    file
}

fn content(dir: &Path) -> CheckpointContent {
    Hasher::new(None, &|_| ()).hash_dir(dir).unwrap()
}

fn model(dir: &Scratch, name: &str, sizes: &[usize]) -> PathBuf {
    dir.write(&format!("{name}/config.json"), br#"{"model_type": "qwen3"}"#);
    dir.write(&format!("{name}/tokenizer.json"), b"{}");
    dir.write(&format!("{name}/model.safetensors"), &weights(sizes));
    dir.path().join(name)
}

/// The model in the repository. Its files are old enough that their hashes are cached.
fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/jackalope-mini")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_flipped_byte_is_another_identity_and_its_tensor_is_named(
        sizes in prop::collection::vec(0..300_000usize, 1..6),
        at in any::<Index>(),
        flip in 1..=255u8,
    ) {
        let dir = Scratch::new();
        let (one, other) = (model(&dir, "one", &sizes), model(&dir, "other", &sizes));
        let wanted = content(&one);
        prop_assert_eq!(wanted.id, content(&other).id, "neither path nor time counts");
        prop_assert_eq!(first_difference(&wanted.tree, &content(&other).tree, &one), None);
        let mut file = weights(&sizes);
        let at = at.index(file.len());
        file[at] ^= flip;
        fs::write(other.join("model.safetensors"), &file).unwrap();
        let data_begin = file.len() - sizes.iter().sum::<usize>();
        let found = Hasher::new(None, &|_| ()).hash_dir(&other);
        if at < data_begin {
            // An invalid header is rejected at once.
            prop_assert!(found.is_err() || found.unwrap().id != wanted.id);
            return Ok(());
        }
        let found = found.unwrap();
        prop_assert_ne!(found.id, wanted.id);
        let mut end = data_begin;
        let tensor = sizes.iter().position(|size| { end += size; at < end }).unwrap();
        let named = format!("model.safetensors: tensor t{tensor} differs");
        prop_assert_eq!(first_difference(&wanted.tree, &found.tree, &one), Some(named));
    }

    #[test]
    fn blocks_fill_the_tensors_in_order_and_none_spans_two(
        sizes in prop::collection::vec(prop_oneof![0..70_000usize, 4_000_000..9_000_000usize], 1..6),
        begin in any::<Index>(),
        end in any::<Index>(),
    ) {
        let head = head(&sizes);
        let total: usize = sizes.iter().sum();
        let layout = Layout::of_head(&head, BLOCK_BYTES_MIN).unwrap();
        prop_assert_eq!(layout.file_bytes, (head.len() + total) as u64);
        let mut at = layout.head_bytes;
        let mut boundaries = vec![at];
        boundaries.extend(sizes.iter().map(|size| { at += *size as u64; at }));
        let mut next = layout.head_bytes;
        for idx in 0..layout.num_blocks {
            let Block { range, tensor } = layout.block(idx);
            prop_assert_eq!(range.start, next);
            let owner: usize = tensor[1..].parse().unwrap();
            prop_assert!(boundaries[owner] <= range.start && range.end <= boundaries[owner + 1]);
            next = range.end;
        }
        prop_assert_eq!(next, layout.file_bytes);
        let place = |index: Index| layout.head_bytes + index.index(total + 1) as u64;
        let (one, other) = (place(begin), place(end));
        let range = one.min(other)..one.max(other);
        let found: Vec<usize> = layout.blocks_in(&range).collect();
        let is_in = |idx: &usize| {
            let block = layout.block(*idx).range;
            block.start < range.end && range.start < block.end
        };
        let wanted: Vec<usize> = (0..layout.num_blocks).filter(is_in).collect();
        prop_assert_eq!(found, wanted);
    }
}

#[test]
fn a_change_of_what_ranks_read_is_another_identity_and_of_the_rest_is_not() {
    let dir = Scratch::new();
    let path = model(&dir, "m", &[10, 100_000]);
    let before = content(&path);
    dir.write("m/tokenizer.json", b"{ }");
    dir.write("m/README.md", b"text");
    assert_eq!(content(&path), before);
    dir.write("m/config.json", br#"{"model_type": "qwen2"}"#);
    let other = content(&path);
    assert_ne!(other.id, before.id);
    let named = first_difference(&before.tree, &other.tree, &path).unwrap();
    assert_eq!(named, "config.json: the content differs");
    let moved = model(&dir, "n", &[10, 100_000]);
    fs::rename(moved.join("model.safetensors"), moved.join("model-1.safetensors")).unwrap();
    let named = first_difference(&before.tree, &content(&moved).tree, &path).unwrap();
    assert_eq!(named, "model.safetensors is missing");
    dir.write("m/model.safetensors", &weights(&[10, 100_001])[..1000]);
    assert!(Hasher::new(None, &|_| ()).hash_dir(&path).is_err(), "it is cut off");
}

#[test]
fn what_was_hashed_is_known_and_a_damaged_cache_is_made_anew() {
    let (dir, trees) = (Scratch::new(), Scratch::new());
    let read = AtomicU64::new(0);
    let on_bytes = |more| {
        read.fetch_add(more, Ordering::Relaxed);
    };
    assert_eq!(known(&shipped(), trees.path()), None);
    let made = Hasher::new(Some(trees.path()), &on_bytes).hash_dir(&shipped()).unwrap();
    let total: u64 = made.tree.files.iter().map(|it| it.bytes).sum();
    assert_eq!(read.into_inner(), total, "progress ends at the size of all files");
    assert_eq!(known(&shipped(), trees.path()), Some(made.clone()));
    // The same files under another path: the cache is keyed by state, not by path.
    let linked = dir.path().join("linked");
    fs::create_dir(&linked).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::os::unix::fs::symlink(shipped().join(name), linked.join(name)).unwrap();
    }
    assert_eq!(known(&linked, trees.path()), Some(made.clone()));
    for entry in fs::read_dir(trees.path()).unwrap() {
        fs::write(entry.unwrap().path(), "nonsense").unwrap();
    }
    assert_eq!(known(&shipped(), trees.path()), None);
    let again = Hasher::new(Some(trees.path()), &|_| ()).hash_dir(&shipped()).unwrap();
    assert_eq!(again, made);
    assert_eq!(known(&shipped(), trees.path()), Some(made));
}

#[test]
fn a_file_that_was_just_written_is_hashed_and_not_remembered() {
    let (dir, trees) = (Scratch::new(), Scratch::new());
    let path = model(&dir, "m", &[100]);
    // The ctime cannot be set; an mtime in the future makes the state unsettled as well.
    let future = std::time::SystemTime::now() + std::time::Duration::from_secs(3600);
    let file = fs::File::options().write(true).open(path.join("model.safetensors")).unwrap();
    file.set_modified(future).unwrap();
    let made = Hasher::new(Some(trees.path()), &|_| ()).hash_dir(&path).unwrap();
    assert!(made.states.iter().all(|state| state.name != "model.safetensors"));
    assert_eq!(known(&path, trees.path()), None);
}

#[test]
fn hashing_that_was_interrupted_goes_on_where_it_stood() {
    let trees = Scratch::new();
    let whole = content(&shipped());
    let total: u64 = whole.tree.files.iter().map(|it| it.bytes).sum();
    let (read, is_cancelled) = (AtomicU64::new(0), AtomicBool::new(false));
    let on_bytes = |more| {
        let before = read.fetch_add(more, Ordering::Relaxed);
        is_cancelled.store(total / 2 < before + more, Ordering::Relaxed);
    };
    let hasher = Hasher {
        is_cancelled: &is_cancelled,
        keep_bytes: 1,
        num_threads: 1,
        ..Hasher::new(Some(trees.path()), &on_bytes)
    };
    assert!(matches!(hasher.hash_dir(&shipped()), Err(ContentError::Cancelled)));
    assert_eq!(known(&shipped(), trees.path()), None, "half is not known");
    // Progress reports the cached part at once; its blocks are not read again.
    let first = AtomicU64::new(0);
    let on_bytes = |more| {
        // The first report covers `config.json`, the second the cached part of the weights.
        first.fetch_max(more, Ordering::Relaxed);
    };
    let again = Hasher::new(Some(trees.path()), &on_bytes).hash_dir(&shipped()).unwrap();
    assert_eq!(again, whole);
    assert!(total / 3 < first.into_inner(), "half of the file was known");
}

/// The header of a weight file with `num_tensors` tensors of `bytes` bytes each.
fn head_of_many(num_tensors: usize, bytes: u64) -> Vec<u8> {
    let name = |idx: usize| format!("model.layers.{}.mlp.experts.{idx}.weight", idx % 61);
    let entry = |idx: usize| {
        let (begin, end) = (idx as u64 * bytes, (idx as u64 + 1) * bytes);
        let name = name(idx);
        format!(r#""{name}":{{"dtype":"U8","shape":[{bytes}],"data_offsets":[{begin},{end}]}}"#)
    };
    let entries: Vec<String> = (0..num_tensors).map(entry).collect();
    let header = format!("{{{}}}", entries.join(","));
    let mut head = (header.len() as u64).to_le_bytes().to_vec();
    head.extend(header.bytes());
    head
}

/// Checkpoints with one tensor for each expert, with weights, scales and biases for each, and with
/// all experts of a layer in one.
#[test]
fn the_hashes_of_a_checkpoint_of_2_tb_fit_into_one_message_to_a_rank() {
    const NUM_FILES: usize = 400;
    for (tensors_per_file, tensor_bytes) in
        [(176, 29_360_128), (700, 7_340_032), (1, 5_200_000_000), (50, 100_000_000)]
    {
        let head = head_of_many(tensors_per_file, tensor_bytes);
        let file_bytes = head.len() as u64 + tensors_per_file as u64 * tensor_bytes;
        let checkpoint_bytes = NUM_FILES as u64 * file_bytes;
        assert!(2_000_000_000_000 <= checkpoint_bytes);
        let layout = Layout::of_head(&head, block_bytes_min(checkpoint_bytes)).unwrap();
        assert_eq!(layout.file_bytes, file_bytes);
        let file = |idx| FileTree {
            name: format!("model-{idx:05}-of-{NUM_FILES:05}.safetensors"),
            bytes: file_bytes,
            head: BlockHash([1; 32]),
            leaves: vec![BlockHash([2; 32]); layout.num_blocks],
        };
        let tree = ContentTree { files: (0..NUM_FILES).map(file).collect() };
        assert_eq!(block_bytes_min(tree.bytes()), block_bytes_min(checkpoint_bytes));
        let expected = ExpectedContent { id: Some(identity(&tree)), tree, states: Vec::new() };
        let message = jackalope_protocol::frame::encode(&expected).unwrap();
        assert!(message.len() < TREE_BYTES_MAX, "{} bytes", message.len());
    }
}

/// If one file's size differs, all files are divided into other blocks; the file with the other
/// size is reported.
#[test]
fn of_two_checkpoints_of_other_sizes_the_file_of_another_size_is_named() {
    let file = |name: &str, bytes, leaf| FileTree {
        name: name.to_owned(),
        bytes,
        head: BlockHash([1; 32]),
        leaves: vec![BlockHash([leaf; 32])],
    };
    let tree = |bytes, leaf| {
        let files =
            vec![file("model-1.safetensors", 9, leaf), file("model-2.safetensors", bytes, 0)];
        ContentTree { files }
    };
    let named = first_difference(&tree(10, 1), &tree(11, 2), Path::new("nowhere")).unwrap();
    assert_eq!(named, "model-2.safetensors: it has 11 bytes there and 10 here");
}
