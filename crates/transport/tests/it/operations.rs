//! Compares every operation with a trivially correct program.

use half::{bf16, f16};
use jackalope_transport::{Dtype, Group, pack, unpack};

use super::{noise, together};

/// Returns the input of a rank: finite numbers of many magnitudes, so that the order
/// of a sum shows.
fn input(elements: usize, dtype: Dtype, rank: usize) -> Vec<u8> {
    let mut bytes = noise(elements * dtype.size_bytes(), rank as u64 * 1000 + elements as u64);
    // The exponent keeps its lower bits only: neither infinite nor NaN.
    match dtype {
        Dtype::F32 => bytes.chunks_mut(4).for_each(|e| e[3] = (e[3] & 0x87) | 0x38),
        Dtype::F16 => bytes.chunks_mut(2).for_each(|e| e[1] &= 0xBF),
        Dtype::Bf16 => bytes.chunks_mut(2).for_each(|e| e[1] = (e[1] & 0x87) | 0x38),
        Dtype::F64 => bytes.chunks_mut(8).for_each(|e| e[7] = (e[7] & 0x83) | 0x3C),
        Dtype::Packed => bytes.chunks_mut(6).for_each(|e| e[5] &= 0x83),
        Dtype::I32 | Dtype::U32 => {}
    }
    bytes
}

/// Returns the sum over all ranks in rank order, one element at a time.
fn reference(inputs: &[Vec<u8>], dtype: Dtype) -> Vec<u8> {
    let size = inputs.len();
    let elements = inputs[0].len() / dtype.size_bytes();
    let width = dtype.size_bytes();
    let mut out = Vec::with_capacity(elements * width);
    for idx in 0..elements {
        let element = |rank: usize| &inputs[rank][idx * width..(idx + 1) * width];
        let four = |rank: usize| <[u8; 4]>::try_from(element(rank)).unwrap();
        let two = |rank: usize| <[u8; 2]>::try_from(element(rank)).unwrap();
        let sum = |value: &dyn Fn(usize) -> f32| (1..size).fold(value(0), |acc, r| acc + value(r));
        match dtype {
            Dtype::F32 => {
                out.extend(sum(&|rank| f32::from_le_bytes(four(rank))).to_le_bytes());
            }
            Dtype::F16 => {
                let wide = sum(&|rank| f16::from_le_bytes(two(rank)).to_f32());
                out.extend(f16::from_f32(wide).to_le_bytes());
            }
            Dtype::Bf16 => {
                let wide = sum(&|rank| bf16::from_le_bytes(two(rank)).to_f32());
                out.extend(bf16::from_f32(wide).to_le_bytes());
            }
            Dtype::Packed => {
                let value = |rank| {
                    let mut number = [0; 8];
                    unpack(element(rank), &mut number);
                    f64::from_le_bytes(number)
                };
                let sum = (0..size).fold(0.0, |acc, rank| acc + value(rank));
                let mut element = Vec::new();
                pack(&sum.to_le_bytes(), &mut element);
                out.extend(element);
            }
            Dtype::F64 => {
                let value = |rank| f64::from_le_bytes(element(rank).try_into().unwrap());
                let sum = (1..size).fold(value(0), |acc, rank| acc + value(rank));
                out.extend(sum.to_le_bytes());
            }
            Dtype::I32 => {
                let wrapped = (0..size)
                    .fold(0i32, |acc, rank| acc.wrapping_add(i32::from_le_bytes(four(rank))));
                out.extend(wrapped.to_le_bytes());
            }
            Dtype::U32 => {
                let wrapped = (0..size)
                    .fold(0u32, |acc, rank| acc.wrapping_add(u32::from_le_bytes(four(rank))));
                out.extend(wrapped.to_le_bytes());
            }
        }
    }
    out
}

/// Returns sizes in bytes at which behaviour changes: empty, odd, the limits of direct exchange, of
/// a chunk, of the ring, and of the use of several sockets.
fn sizes(size: usize, width: usize) -> Vec<usize> {
    let num_peers = (size - 1).max(1);
    let direct = (256 << 10) / (num_peers * num_peers);
    let borders = [direct, 32 << 10, size * (48 << 10), size * (192 << 10), 1 << 20];
    let whole = 4096 / width * width;
    let mut bytes = vec![0, width, 3 * width, whole, whole + width];
    for border in borders.map(|border| border / width * width) {
        bytes.extend([border - width, border, border + width]);
    }
    bytes.push((3 << 20) / width * width + 5 * width);
    bytes
}

/// Whether a group is tried at every size or at a few.
#[derive(Clone, Copy, PartialEq)]
enum Sizes {
    All,
    Few,
}

fn check_all(mut group: Group, which: Sizes) {
    let size = group.size();
    for dtype in Dtype::ALL {
        let mut bytes = sizes(size, dtype.size_bytes());
        if which == Sizes::Few {
            bytes = vec![0, 4096, 70_000, bytes[bytes.len() - 1]];
        }
        for bytes in bytes {
            let elements = bytes / dtype.size_bytes();
            let inputs: Vec<Vec<u8>> = (0..size).map(|rank| input(elements, dtype, rank)).collect();
            check_sum(&mut group, &inputs, dtype);
            check_gather(&mut group, &inputs, dtype);
            check_messages(&mut group, &inputs, dtype);
            group.barrier().unwrap();
        }
    }
}

fn check_sum(group: &mut Group, inputs: &[Vec<u8>], dtype: Dtype) {
    let mut data = inputs[group.rank()].clone();
    group.all_sum(&mut data, dtype).unwrap();
    let what = format!("all_sum of {} bytes {dtype}, rank {}", data.len(), group.rank());
    assert!(data == reference(inputs, dtype), "{what}");
}

fn check_gather(group: &mut Group, inputs: &[Vec<u8>], dtype: Dtype) {
    let local = &inputs[group.rank()];
    let mut out = vec![0xEE; local.len() * inputs.len()];
    group.all_gather(local, &mut out, dtype).unwrap();
    let what = format!("all_gather of {} bytes {dtype}, rank {}", local.len(), group.rank());
    assert!(out == inputs.concat(), "{what}");
}

/// Every rank sends to every other, then receives: no rank may wait for a receiver that is still sending.
fn check_messages(group: &mut Group, inputs: &[Vec<u8>], dtype: Dtype) {
    let rank = group.rank();
    for peer in (0..inputs.len()).filter(|peer| *peer != rank) {
        group.send(&inputs[rank], dtype, peer).unwrap();
    }
    for peer in (0..inputs.len()).filter(|peer| *peer != rank) {
        let mut data = vec![0xEE; inputs[rank].len()];
        group.recv(&mut data, dtype, peer).unwrap();
        assert!(data == inputs[peer], "{} bytes {dtype} from rank {peer}", data.len());
    }
}

#[test]
fn every_operation_type_and_size_gives_what_a_plain_loop_gives_on_every_rank() {
    for size in 1..=5 {
        together(
            size,
            |_| {},
            |group| check_all(group, if size <= 3 { Sizes::All } else { Sizes::Few }),
        );
    }
}

#[test]
fn several_sockets_and_checksums_change_no_result() {
    for size in 2..=4 {
        let configure = |config: &mut jackalope_transport::GroupConfig| {
            config.sockets_per_peer = 3;
            config.checksums = true;
        };
        together(size, configure, |group| check_all(group, Sizes::Few));
    }
}

#[test]
fn a_group_that_never_spins_gives_the_same_results() {
    let configure =
        |config: &mut jackalope_transport::GroupConfig| config.spin = std::time::Duration::ZERO;
    together(3, configure, |group| check_all(group, Sizes::Few));
}

#[test]
fn sixty_four_mebibytes_are_summed_and_gathered() {
    const BYTES: usize = 64 << 20;
    together(
        2,
        |_| {},
        |mut group| {
            let mut data = noise(BYTES, group.rank() as u64);
            group.all_sum(&mut data, Dtype::U32).unwrap();
            let parts = [noise(BYTES, 0), noise(BYTES, 1)];
            let word =
                |part: &[u8], at: usize| u32::from_le_bytes(*part[at..].first_chunk().unwrap());
            let is_right = (0..BYTES)
                .step_by(4)
                .all(|at| word(&data, at) == word(&parts[0], at).wrapping_add(word(&parts[1], at)));
            assert!(is_right);
            let mut out = vec![0; 2 * BYTES];
            group.all_gather(&parts[group.rank()], &mut out, Dtype::F16).unwrap();
            assert!(out[..BYTES] == parts[0] && out[BYTES..] == parts[1]);
        },
    );
}

#[test]
fn messages_that_came_early_are_received_in_their_order() {
    const COUNT: usize = 12;
    let bytes_of = |idx: usize| [0, 40, 3 << 20, 40_000, 1 << 20][idx % 5];
    together(
        3,
        |_| {},
        |mut group| {
            let (next, previous) = ((group.rank() + 1) % 3, (group.rank() + 2) % 3);
            for idx in 0..COUNT {
                group.send(&noise(bytes_of(idx), idx as u64), Dtype::U32, next).unwrap();
            }
            for idx in 0..COUNT {
                let mut data = vec![0; bytes_of(idx)];
                group.recv(&mut data, Dtype::U32, previous).unwrap();
                assert!(data == noise(bytes_of(idx), idx as u64), "message {idx}");
            }
            let mut ones = 1u32.to_le_bytes();
            group.all_sum(&mut ones, Dtype::U32).unwrap();
            assert_eq!(ones, 3u32.to_le_bytes());
        },
    );
}

#[test]
fn more_small_messages_than_the_sockets_hold_may_be_sent_before_any_is_received() {
    const COUNT: u64 = 1000;
    const BYTES: usize = 30_000;
    together(
        2,
        |_| {},
        |mut group| {
            let peer = 1 - group.rank();
            for idx in 0..COUNT {
                group.send(&noise(BYTES, idx), Dtype::F16, peer).unwrap();
            }
            for idx in 0..COUNT {
                let mut data = vec![0; BYTES];
                group.recv(&mut data, Dtype::F16, peer).unwrap();
                assert!(data == noise(BYTES, idx), "message {idx}");
            }
        },
    );
}

#[test]
fn a_rank_that_is_already_in_the_next_collective_does_not_disturb_ranks_that_still_send() {
    together(
        3,
        |_| {},
        |mut group| {
            // Rank 2 begins with the sum; its frame reaches rank 0 while rank 0 is still sending.
            let mut data = noise(8 << 20, 7);
            match group.rank() {
                0 => group.send(&data, Dtype::U32, 1).unwrap(),
                1 => group.recv(&mut data, Dtype::U32, 0).unwrap(),
                _ => {}
            }
            let mut ones = 1u32.to_le_bytes();
            group.all_sum(&mut ones, Dtype::U32).unwrap();
            assert_eq!(ones, 3u32.to_le_bytes());
        },
    );
}

#[test]
fn a_group_counts_what_it_does() {
    let stats = together(
        3,
        |_| {},
        |mut group| {
            group.all_sum(&mut [0; 4096], Dtype::F32).unwrap();
            group.barrier().unwrap();
            let mut large = vec![0; 9 << 20];
            group.all_sum(&mut large, Dtype::F32).unwrap();
            group.stats()
        },
    );
    for stats in stats {
        assert_eq!(stats.operations, 3);
        // Direct: 4096 bytes to each peer. Segments: two thirds of the buffer, twice.
        assert_eq!(stats.bytes_sent, 2 * 4096 + 4 * (3 << 20));
        assert_eq!(stats.bytes_received, stats.bytes_sent);
        assert!(stats.waited <= stats.spent);
    }
}
