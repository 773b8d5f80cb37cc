//! Rows of whole and divided embedding tables.

use jackalope_kernels::{Elements, ElementsMut, Float, Threads, embedding, quantized_embedding};
use proptest::prelude::*;

use crate::support::{
    Floats, OwnedQuant, Random, any_float, any_format, assert_close, dense, pools,
};

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_quantised_row_is_its_dequantised_values_rounded_once(
        format in any_format(),
        (weight_float, out_float) in (any_float(), any_float()),
        (rows, groups) in (1_usize..20, 1_usize..12),
        ids in prop::collection::vec(0_u32..40, 0..30),
        seed in any::<u64>(),
    ) {
        let input = (groups * format.group_size as usize).next_multiple_of(32);
        let matrix = Random(seed).quant(format, (rows, input), weight_float, 0.1);
        let weights = matrix.weights();
        for threads in pools(1) {
            let mut out = Floats::unwritten(out_float, ids.len() * input);
            quantized_embedding(&ids, &matrix.view(), 10, out.view_mut(), &threads);
            for (idx, value) in out.to_f64().into_iter().enumerate() {
                let row = (ids[idx / input] as usize).checked_sub(10).filter(|row| *row < rows);
                match row {
                    Some(row) => {
                        let (weight, magnitude) = weights[row * input + idx % input];
                        assert_close(value, weight, magnitude, out_float);
                    }
                    None => prop_assert_eq!(value, 0.0),
                }
            }
        }
    }

    #[test]
    fn a_plain_row_keeps_its_bits(
        float in any_float(),
        (rows, width) in (1_usize..20, 1_usize..1300),
        ids in prop::collection::vec(0_u32..20, 0..200),
        seed in any::<u64>(),
    ) {
        let table = Random(seed).dense((rows, width), float);
        for threads in pools(3) {
            let mut out = Floats::unwritten(float, ids.len() * width);
            embedding(&ids, &dense(&table, (rows, width)), 0, out.view_mut(), &threads);
            for (token, id) in ids.iter().enumerate() {
                let row = out.part(token * width, (token + 1) * width);
                let expected = match *id as usize {
                    id if id < rows => table.part(id * width, (id + 1) * width),
                    _ => Floats::new(float, vec![0.0; width]),
                };
                prop_assert_eq!(row.bits(), expected.bits());
            }
        }
    }
}

/// The rows `start..end` as another rank would hold them.
fn shard(matrix: &OwnedQuant, start: usize, end: usize) -> OwnedQuant {
    let words_per_row = matrix.format.words_per_row(matrix.input);
    let mut shard = matrix.clone();
    shard.out = end - start;
    shard.words = matrix.words[start * words_per_row..end * words_per_row].to_vec();
    let groups_per_row = matrix.format.groups_per_row(matrix.input);
    let groups = start * groups_per_row..end * groups_per_row;
    if let crate::support::OwnedScales::Affine(scales, biases) = &mut shard.scales {
        *scales = scales.part(groups.start, groups.end);
        *biases = biases.part(groups.start, groups.end);
    }
    shard
}

#[test]
fn the_rows_of_all_parts_of_a_table_add_up_to_the_whole_table_s() {
    let format = jackalope_kernels::QuantFormat {
        mode: jackalope_kernels::QuantMode::Affine,
        bits: 4,
        group_size: 64,
    };
    let matrix = Random(3).quant(format, (10, 192), Float::Bf16, 0.1);
    let ids = [9, 0, 3, 4, 4, 7, 6, 1];
    let threads = Threads::new(1);
    let gather = |matrix: &OwnedQuant, first_id| {
        let mut out = vec![f32::NAN; ids.len() * 192];
        quantized_embedding(&ids, &matrix.view(), first_id, ElementsMut::F32(&mut out), &threads);
        out
    };
    let mut sum = vec![0.0; ids.len() * 192];
    for (start, end) in [(0, 4), (4, 7), (7, 10)] {
        let part = gather(&shard(&matrix, start, end), start as u32);
        sum.iter_mut().zip(part).for_each(|(sum, value)| *sum += value);
    }
    assert_eq!(sum, gather(&matrix, 0));
}

#[test]
fn ids_at_the_ends_of_their_type_are_outside_every_part() {
    let table = [1.0, 2.0];
    let table = jackalope_kernels::DenseMatrix { out: 2, input: 1, values: Elements::F32(&table) };
    let mut out = [f32::NAN; 5];
    let ids = [0, u32::MAX - 1, u32::MAX, 5, 6];
    embedding(&ids, &table, u32::MAX - 1, ElementsMut::F32(&mut out), &Threads::new(1));
    assert_eq!(out, [0.0, 1.0, 2.0, 0.0, 0.0]);
}
