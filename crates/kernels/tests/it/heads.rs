//! Products with a matrix for each head: each head's are what it computes alone, in any company.

use jackalope_kernels::{
    Float, HeadMatrices, HeadResults, Matrix, Product, QuantFormat, Threads, head_matmul,
    head_matmul_untransposed, heads_apart, matmul_each,
};
use proptest::prelude::*;

use crate::support::{
    Floats, OwnedQuant, Random, any_float, any_format, assert_close, dense, pools,
};

/// Heads without their contents, which are generated from `seed`.
#[derive(Clone, Debug)]
struct Case {
    /// `None` for dense matrices.
    format: Option<QuantFormat>,
    float: Float,
    tokens: usize,
    num_heads: usize,
    /// Rows of a head before the part, in it, and after it.
    rows: [usize; 3],
    columns: usize,
    /// Elements of a head's results before and after those that are written.
    margins: [usize; 2],
    seed: u64,
}

fn cases() -> impl Strategy<Value = Case> {
    let formats = prop_oneof![2 => any_format().prop_map(Some), 1 => Just(None)];
    let tokens = prop_oneof![3 => 0_usize..20, 1 => 95_usize..110];
    let sizes = (tokens, 1_usize..6, 1_usize..260);
    let rows = (0_usize..5, 1_usize..90, 0_usize..5);
    let margins = (0_usize..9, 0_usize..9);
    (formats, any_float(), sizes, rows, margins, any::<u64>()).prop_map(
        |(format, float, (tokens, num_heads, columns), rows, margins, seed)| {
            let unit = format.map_or(1, |format| format.group_size as usize);
            let columns = columns.next_multiple_of(unit);
            let (rows, margins) = ([rows.0, rows.1, rows.2], [margins.0, margins.1]);
            Case { format, float, tokens, num_heads, rows, columns, margins, seed }
        },
    )
}

/// The matrices of all heads.
enum Heads {
    Quant(OwnedQuant),
    Dense { values: Floats, shape: (usize, usize) },
}

impl Heads {
    fn view(&self) -> Matrix<'_> {
        match self {
            Heads::Quant(matrix) => Matrix::Quantized(matrix.view()),
            Heads::Dense { values, shape } => Matrix::Dense(dense(values, *shape)),
        }
    }

    /// Every weight with the magnitude of the terms it is computed from.
    fn weights(&self) -> Vec<(f64, f64)> {
        match self {
            Heads::Quant(matrix) => matrix.weights(),
            Heads::Dense { values, .. } => {
                values.to_f64().into_iter().map(|weight| (weight, weight.abs())).collect()
            }
        }
    }
}

impl Case {
    fn stored_rows(&self) -> usize {
        self.rows.iter().sum()
    }

    fn heads(&self, random: &mut Random) -> Heads {
        let shape = (self.num_heads * self.stored_rows(), self.columns);
        match self.format {
            Some(format) => Heads::Quant(random.quant(format, shape, self.float, 0.01)),
            None => Heads::Dense { values: random.dense(shape, self.float), shape },
        }
    }

    fn matrices<'a>(&self, heads: &'a Heads) -> HeadMatrices<'a> {
        let [first, num_rows, _] = self.rows;
        HeadMatrices { matrix: heads.view(), num_heads: self.num_heads, first, num_rows }
    }

    /// Computes the products of the tokens from `first` on, as `[tokens, heads, width]` with what was
    /// in the margins before.
    fn products(
        &self,
        (x, first): (&Floats, usize),
        heads: &Heads,
        is_transposed: bool,
        threads: &Threads,
    ) -> Floats {
        let [_, num_rows, _] = self.rows;
        let (from, to) =
            if is_transposed { (self.columns, num_rows) } else { (num_rows, self.columns) };
        let part = x.part(first * self.num_heads * from, self.tokens * self.num_heads * from);
        let x = heads_apart(part.view(), [self.num_heads, from], [0, from], self.float);
        let width = self.margins[0] + to + self.margins[1];
        let len = (self.tokens - first) * self.num_heads * width;
        let mut out = Floats::new(self.float, std::iter::repeat_n(7.0, len));
        let results = HeadResults { values: out.view_mut(), width, first: self.margins[0] };
        let matrices = self.matrices(heads);
        if is_transposed {
            head_matmul(x.elements(), &matrices, results, threads);
        } else {
            head_matmul_untransposed(x.elements(), &matrices, results, threads);
        }
        out
    }
}

proptest! {
    #[test]
    fn a_head_s_product_is_what_its_matrix_computes_alone(case in cases(), num_threads in 1_usize..4) {
        let mut random = Random(case.seed);
        let heads = case.heads(&mut random);
        let x = random.floats(case.float, case.tokens * case.num_heads * case.columns, 1.0);
        let [before, num_rows, _] = case.rows;
        for threads in pools(num_threads) {
            let found = case.products((&x, 0), &heads, true, &threads);
            let stored = case.num_heads * case.stored_rows();
            let rows = case.tokens * case.num_heads;
            let mut all = Floats::unwritten(case.float, rows * stored);
            let product = Product { matrix: heads.view(), out: all.view_mut() };
            matmul_each(x.view(), vec![product], &threads);
            let width = case.margins[0] + num_rows + case.margins[1];
            for row in 0..rows {
                let start = row * stored + row % case.num_heads * case.stored_rows() + before;
                let expected = all.part(start, start + num_rows);
                let own = row * width + case.margins[0];
                prop_assert_eq!(found.part(own, own + num_rows).bits(), expected.bits());
                let margin = found.part(own + num_rows, (row + 1) * width);
                prop_assert!(margin.to_f64().iter().all(|value| *value == 7.0));
            }
        }
    }

    #[test]
    fn an_untransposed_product_agrees_with_double_precision(
        case in cases(),
        num_threads in 1_usize..4,
        first in 0_usize..100,
    ) {
        let mut random = Random(case.seed);
        let heads = case.heads(&mut random);
        let [before, num_rows, _] = case.rows;
        let x = random.floats(case.float, case.tokens * case.num_heads * num_rows, 1.0);
        let (weights, inputs) = (heads.weights(), x.to_f64());
        let width = case.margins[0] + case.columns + case.margins[1];
        for threads in pools(num_threads) {
            let found = case.products((&x, 0), &heads, false, &threads);
            let values = found.to_f64();
            for _ in 0..40.min(values.len()) {
                let row = random.below(case.tokens * case.num_heads);
                let column = random.below(case.columns);
                let first_row = row % case.num_heads * case.stored_rows() + before;
                let terms = (0..num_rows).map(|idx| {
                    let (weight, magnitude) = weights[(first_row + idx) * case.columns + column];
                    let x = inputs[row * num_rows + idx];
                    (x * weight, x.abs() * magnitude)
                });
                let (sum, magnitude) = terms.fold((0.0, 0.0), |(a, b), (c, d)| (a + c, b + d));
                let value = values[row * width + case.margins[0] + column];
                assert_close(value, sum, magnitude, case.float);
            }
            // The bits depend neither on the other tokens nor on the threads.
            let first = first % (case.tokens + 1);
            let later = case.products((&x, first), &heads, false, &Threads::with_instructions(1, threads.instructions()));
            let start = first * case.num_heads * width;
            prop_assert_eq!(later.bits(), found.part(start, values.len()).bits());
        }
    }
}

#[test]
fn heads_are_taken_apart() {
    let x = Floats::new(Float::F32, (0..24).map(|value| value as f32));
    let apart = heads_apart(x.view(), [2, 4], [1, 2], Float::F32);
    let expected = [1.0, 2.0, 9.0, 10.0, 17.0, 18.0, 5.0, 6.0, 13.0, 14.0, 21.0, 22.0];
    let jackalope_kernels::Floats::F32(values) = apart else { panic!("they are of that type") };
    assert_eq!(values, expected);
}
