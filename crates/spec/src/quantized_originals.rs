//! Originals whose makers quantised them: their tensors get the names, types and values of a conversion.

use std::collections::BTreeMap;

use jackalope_config::original::OriginalFormat;
pub use jackalope_config::original::{ColumnFormat, ColumnOrder};

use crate::tensor::{ElementType, TensorHeader};

/// Ending of the names of factors and scales beside the tensor that they belong to.
const FACTORS: &str = "_scale_inv";

/// Ending of the names of factors for activations, which stay as they are computed.
const OF_ACTIVATIONS: &str = "activation_scale";

/// Number of bytes of a word of codes.
const WORD_BYTES: usize = 4;

/// Rows of a tile that has one scale for every 32 columns.
const TILE_ROWS: usize = 32;

/// Rows of a matrix for each row of its factors, at least: with fewer, factors belong to rows and not to blocks.
const BLOCK_ROWS_MIN: usize = 16;

/// Number of packed integers in a word.
const INT4_PER_WORD: usize = 8;

/// What a scale of packed integers is multiplied by to get MLX's bias: codes are eight more than the integers.
const INT4_OFFSET: f32 = -8.0;

/// A tensor whose bytes are computed from those of stored tensors.
#[derive(Clone, Copy, Debug)]
pub enum Derived<T> {
    /// The elements, which are floats, times a factor.
    Multiplied {
        /// The elements.
        source: T,
        /// The factor.
        factor: f32,
    },
    /// Each row of bytes several times.
    RowsRepeated {
        /// The rows, `[rows, columns]` of U8.
        source: T,
        /// How often each row occurs; the last may occur less often.
        times: usize,
    },
    /// E4M3 codes times the factors of their blocks, rounded to bf16.
    Dequantized {
        /// The codes, `[…, rows, columns]`.
        codes: T,
        /// One factor for each block of each matrix, in rows of blocks.
        factors: T,
        /// Size of the blocks.
        blocks: FactorBlocks,
    },
    /// The transposed matrix: of scales, or of words of codes.
    Transposed {
        /// The matrix.
        source: T,
        /// The group of each input. Only groups of inputs that follow one another are supported.
        groups: Option<InputGroups<T>>,
    },
    /// Words of eight inputs of 4 bits, from AutoAWQ's words of eight outputs.
    Repacked {
        /// The words, `[inputs, outputs / 8]`.
        words: T,
    },
    /// The negated products of scales and zero points, rounded to the type of the scales.
    Biases {
        /// Words of zero points, `[groups, outputs * bits / 32]`.
        zeros: T,
        /// The scales, `[groups, outputs]`.
        scales: T,
        /// How the words are packed.
        format: ColumnFormat,
    },
}

/// The group of each input of a matrix.
#[derive(Clone, Copy, Debug)]
pub struct InputGroups<T> {
    /// Number of its group for each input, of I32.
    pub indices: T,
    /// Inputs of a group, if they are in order.
    pub group_size: usize,
}

/// Which elements of matrices share a factor.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct FactorBlocks {
    /// Rows of a matrix, of which no block crosses the end.
    pub matrix_rows: usize,
    /// Rows of a block.
    pub rows: usize,
    /// Columns of a block.
    pub columns: usize,
}

/// A stored tensor, or only its header.
pub trait OriginalTensor: Clone {
    /// Type and dimensions; without dimensions if only the name is known.
    fn header(&self) -> &TensorHeader;

    /// Returns a tensor of the same bytes.
    fn with_header(&self, header: TensorHeader) -> Self;

    /// Returns a tensor that is computed from others.
    fn derived(from: Derived<Self>, header: TensorHeader) -> Self;
}

impl OriginalTensor for TensorHeader {
    fn header(&self) -> &TensorHeader {
        self
    }

    fn with_header(&self, header: TensorHeader) -> Self {
        header
    }

    fn derived(_: Derived<Self>, header: TensorHeader) -> Self {
        header
    }
}

/// Gives the tensors of an original the names, types and values of a conversion. Tensors of unexpected types or
/// dimensions stay for the check to refuse.
pub fn as_converted<T: OriginalTensor>(
    format: OriginalFormat,
    stored: BTreeMap<String, T>,
) -> BTreeMap<String, T> {
    let mut tensors = Tensors { tensors: stored };
    match format {
        OriginalFormat::Mxfp8 => tensors.name_words_and_scales("weight", "weight_scale_inv", 1),
        OriginalFormat::Tiles => tensors.name_words_and_scales("weight", "scale", TILE_ROWS),
        OriginalFormat::Mxfp4 => tensors.name_words_and_scales("weight_packed", "weight_scale", 1),
        OriginalFormat::Int4 { group_size } => tensors.name_integers(group_size),
        OriginalFormat::Fp8 => tensors.dequantize(),
        OriginalFormat::Columns(format) => tensors.turn_columns(format),
    }
    tensors.tensors
}

/// The tensors of an original, some of which have become those of a conversion.
struct Tensors<T> {
    tensors: BTreeMap<String, T>,
}

impl<T: OriginalTensor> Tensors<T> {
    /// Returns what the names of tensors with an ending begin with.
    fn before(&self, ending: &str) -> Vec<String> {
        let names = self.tensors.keys().filter_map(|name| name.strip_suffix(ending));
        names.map(str::to_owned).collect()
    }

    /// Renames codes and their scales, which have the bytes of MLX's, under names with these endings. Up to `times`
    /// rows of codes share a row of scales.
    fn name_words_and_scales(&mut self, codes: &str, scales: &str, times: usize) {
        for module in self.before(&format!(".{scales}")) {
            let Some(words) = self.tensors.remove(&format!("{module}.{codes}")) else { continue };
            let found = self.tensors.remove(&format!("{module}.{scales}")).expect("it was listed");
            let rows = second_last(&words);
            self.tensors.insert(format!("{module}.weight"), as_words(&words));
            self.tensors
                .insert(format!("{module}.scales"), in_each_row(as_bytes(found), rows, times));
        }
    }

    /// Renames packed integers and their scales, and adds the biases. Those whose scales are for another number of
    /// columns than `group_size` keep their names.
    fn name_integers(&mut self, group_size: Option<u64>) {
        for module in self.before(".weight_packed") {
            let has = |kind: &str| self.tensors.contains_key(&format!("{module}.{kind}"));
            if has("weight") || has("biases") || has("scales") {
                continue;
            }
            if group_size.is_some_and(|size| !self.has_groups_of(&module, size)) {
                continue;
            }
            self.tensors.remove(&format!("{module}.weight_shape"));
            let codes = self.tensors.remove(&format!("{module}.weight_packed"));
            let words = as_words(&codes.expect("it was listed"));
            self.tensors.insert(format!("{module}.weight"), words);
            let Some(scales) = self.tensors.remove(&format!("{module}.weight_scale")) else {
                continue;
            };
            let (source, header) = (scales.clone(), scales.header().clone());
            let biases = T::derived(Derived::Multiplied { source, factor: INT4_OFFSET }, header);
            self.tensors.insert(format!("{module}.biases"), biases);
            self.tensors.insert(format!("{module}.scales"), scales);
        }
    }

    /// Whether each scale of packed integers is for `size` columns, as far as more than the names are known.
    fn has_groups_of(&self, module: &str, size: u64) -> bool {
        let columns = |kind: &str| {
            let tensor = self.tensors.get(&format!("{module}.{kind}"));
            tensor.and_then(|it| it.header().shape.last().copied())
        };
        match (columns("weight_packed"), columns("weight_scale")) {
            (Some(words), Some(groups)) => {
                Some((words * INT4_PER_WORD) as u64) == (groups as u64).checked_mul(size)
            }
            _ => true,
        }
    }

    /// Transposes codes and scales, and computes biases from zero points. Modules with other dimensions than those of
    /// `format` keep their names.
    fn turn_columns(&mut self, format: ColumnFormat) {
        for module in self.before(".qweight") {
            let find = |kind: &str| self.tensors.get(&format!("{module}.{kind}")).cloned();
            if find("weight").is_some() || find("biases").is_some() {
                continue;
            }
            let (Some(words), Some(zeros), Some(scales)) =
                (find("qweight"), find("qzeros"), find("scales"))
            else {
                continue;
            };
            let order = find("g_idx");
            let headers = [&words, &zeros, &scales].map(T::header);
            let is_name = headers[0].shape.is_empty();
            let found = Columns::of(headers, format);
            let group_size = found.as_ref().map_or(0, |it| it.num_inputs / it.num_groups.max(1));
            let is_known = |it: &T| {
                found.as_ref().is_some_and(|found| it.header().shape == [found.num_inputs])
            };
            if !is_name && (found.is_none() || !order.as_ref().is_none_or(is_known)) {
                continue;
            }
            let found = found.unwrap_or_default();
            let code_header = found.header(is_name, ElementType::U32, found.num_words);
            let scale_header =
                found.header(is_name, scales.header().element_type.clone(), found.num_groups);
            let groups = order.map(|indices| InputGroups { indices, group_size });
            let codes = match format.order {
                ColumnOrder::Awq => Derived::Repacked { words },
                ColumnOrder::Gptq => Derived::Transposed { source: words, groups },
            };
            let biases = Derived::Biases { zeros, scales: scales.clone(), format };
            let turned = Derived::Transposed { source: scales, groups: None };
            for kind in ["qweight", "qzeros", "g_idx"] {
                self.tensors.remove(&format!("{module}.{kind}"));
            }
            let mut insert = |kind: &str, from, header: &TensorHeader| {
                self.tensors.insert(format!("{module}.{kind}"), T::derived(from, header.clone()));
            };
            insert("weight", codes, &code_header);
            insert("scales", turned, &scale_header);
            insert("biases", biases, &scale_header);
        }
    }

    /// Replaces codes and factors by their products.
    fn dequantize(&mut self) {
        self.tensors.retain(|name, _| !name.ends_with(OF_ACTIVATIONS));
        for name in self.before(FACTORS) {
            let factors_name = format!("{name}{FACTORS}");
            let Some(codes) = self.tensors.get(&name) else { continue };
            let factors = &self.tensors[&factors_name];
            let shape = &codes.header().shape;
            // Only names are known.
            let is_name = shape.is_empty();
            if let Some(blocks) = FactorBlocks::of(codes.header(), factors.header()) {
                let header = TensorHeader { element_type: ElementType::Bf16, shape: shape.clone() };
                let (codes, factors) = (codes.clone(), factors.clone());
                let derived = T::derived(Derived::Dequantized { codes, factors, blocks }, header);
                self.tensors.insert(name, derived);
            } else if !is_name {
                continue;
            }
            self.tensors.remove(&factors_name);
        }
    }
}

/// Dimensions of a matrix whose inputs are rows.
#[derive(Debug, Default)]
struct Columns {
    num_inputs: usize,
    num_outputs: usize,
    num_groups: usize,
    /// Words of codes of an output.
    num_words: usize,
}

impl Columns {
    /// Returns the dimensions; `None` if words, zero points and scales do not belong together as `format` states.
    fn of([words, zeros, scales]: [&TensorHeader; 3], format: ColumnFormat) -> Option<Columns> {
        let per_word = (u32::BITS / format.bits) as usize;
        let ([rows, columns], [num_groups, num_outputs]) = (&words.shape[..], &scales.shape[..])
        else {
            return None;
        };
        let (num_groups, num_outputs) = (*num_groups, *num_outputs);
        let (num_inputs, num_codes) = match format.order {
            ColumnOrder::Awq => (*rows, columns.checked_mul(per_word)?),
            ColumnOrder::Gptq => (rows.checked_mul(per_word)?, *columns),
        };
        let is_packed = |header: &TensorHeader| is_one_of(header, &["I32", "U32"]);
        let has_groups = 0 < num_groups
            && num_inputs.is_multiple_of(num_groups)
            && format.group_size.is_none_or(|size| (num_inputs / num_groups) as u64 == size);
        let is_whole = num_inputs.is_multiple_of(per_word) && num_outputs.is_multiple_of(per_word);
        let is_known = is_packed(words)
            && is_packed(zeros)
            && scales.element_type.is_float()
            && num_codes == num_outputs
            && has_groups
            && is_whole
            && zeros.shape == [num_groups, num_outputs / per_word];
        let num_words = num_inputs / per_word;
        is_known.then_some(Columns { num_inputs, num_outputs, num_groups, num_words })
    }

    /// Returns the header of a matrix of all outputs with so many columns; without dimensions if only names are
    /// known.
    fn header(&self, is_name: bool, element_type: ElementType, columns: usize) -> TensorHeader {
        let shape = if is_name { Vec::new() } else { vec![self.num_outputs, columns] };
        TensorHeader { element_type, shape }
    }
}

fn is_one_of(header: &TensorHeader, names: &[&str]) -> bool {
    names.contains(&header.element_type.name())
}

/// Returns the number of rows of each matrix; 0 if there is none.
fn second_last<T: OriginalTensor>(tensor: &T) -> usize {
    tensor.header().shape.iter().rev().nth(1).copied().unwrap_or(0)
}

/// Returns codes as MLX's words, if their elements have one byte or the size of a word.
fn as_words<T: OriginalTensor>(codes: &T) -> T {
    let mut header = codes.header().clone();
    if is_one_of(&header, &["I32", "U32"]) {
        header.element_type = ElementType::U32;
    } else if let Some(last) = header.shape.last_mut()
        && last.is_multiple_of(WORD_BYTES)
        && is_one_of(codes.header(), &["U8", "I8", "F8_E4M3"])
    {
        *last /= WORD_BYTES;
        header.element_type = ElementType::U32;
    }
    codes.with_header(header)
}

/// Returns E8M0 scales as MLX's bytes.
fn as_bytes<T: OriginalTensor>(scales: T) -> T {
    let mut header = scales.header().clone();
    if !is_one_of(&header, &["U8", "F8_E8M0"]) {
        return scales;
    }
    header.element_type = ElementType::U8;
    scales.with_header(header)
}

/// Returns the scales of all `rows`, of which `times` share those that are stored.
fn in_each_row<T: OriginalTensor>(scales: T, rows: usize, times: usize) -> T {
    let header = scales.header();
    match header.shape[..] {
        [found, columns]
            if found != rows
                && found == rows.div_ceil(times)
                && header.element_type == ElementType::U8 =>
        {
            let header = TensorHeader { element_type: ElementType::U8, shape: vec![rows, columns] };
            T::derived(Derived::RowsRepeated { source: scales, times }, header)
        }
        _ => scales,
    }
}

impl FactorBlocks {
    /// Returns the blocks; `None` if codes and factors do not belong together in a known way.
    fn of(codes: &TensorHeader, factors: &TensorHeader) -> Option<FactorBlocks> {
        if !is_one_of(codes, &["U8", "F8_E4M3"]) || !factors.element_type.is_float() {
            return None;
        }
        let [outer @ .., rows, columns] = &codes.shape[..] else { return None };
        let (matrix_rows, num_matrices) = (*rows, outer.iter().product::<usize>());
        let num_factors: usize = factors.shape.iter().product();
        let size = OriginalFormat::FP8_BLOCK;
        let down = rows.div_ceil(size);
        match &factors.shape[..] {
            _ if num_factors == 1 => {
                let all = num_matrices * rows;
                Some(FactorBlocks { matrix_rows: all, rows: all, columns: *columns })
            }
            // One for each expert.
            [count, 1, 1] if outer == [*count] => {
                Some(FactorBlocks { matrix_rows, rows: *rows, columns: *columns })
            }
            [count @ .., found, across] if count == outer && columns.div_ceil(size) == *across => {
                // Some have blocks after the last rows of a matrix, which nothing uses.
                let has_more = outer.is_empty() && down < *found && found * BLOCK_ROWS_MIN <= *rows;
                let is_known = *found == down || has_more;
                is_known.then_some(FactorBlocks { matrix_rows, rows: size, columns: size })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(element_type: &str, shape: &[usize]) -> TensorHeader {
        let element_type = ElementType::from_name(element_type);
        TensorHeader { element_type, shape: shape.to_vec() }
    }

    /// Converts tensors of these names, types and dimensions.
    fn converted(
        format: OriginalFormat,
        stored: &[(&str, &str, &[usize])],
    ) -> Vec<(String, String, Vec<usize>)> {
        let stored = stored.iter().map(|(name, it, shape)| ((*name).to_owned(), header(it, shape)));
        let tensors = as_converted(format, stored.collect()).into_iter();
        tensors.map(|(name, it)| (name, it.element_type.name().to_owned(), it.shape)).collect()
    }

    fn found(name: &str, element_type: &str, shape: &[usize]) -> (String, String, Vec<usize>) {
        (name.to_owned(), element_type.to_owned(), shape.to_vec())
    }

    #[test]
    fn codes_and_scales_become_those_of_conversions() {
        let norm = ("norm.weight", "BF16", &[64][..]);
        for [codes, scales] in [["F8_E4M3", "F8_E8M0"], ["U8", "U8"]] {
            let stored =
                [("a.weight", codes, &[5, 64][..]), ("a.weight_scale_inv", scales, &[5, 2]), norm];
            let expected = [
                found("a.scales", "U8", &[5, 2]),
                found("a.weight", "U32", &[5, 16]),
                found("norm.weight", "BF16", &[64]),
            ];
            assert_eq!(converted(OriginalFormat::Mxfp8, &stored), expected);
        }
    }

    #[test]
    fn tiles_have_scales_in_each_row() {
        let stored = [
            ("a.scale", "F8_E8M0", &[3, 2][..]),
            ("a.weight", "F8_E4M3", &[65, 64]),
            ("expert.scale", "F8_E8M0", &[65, 2]),
            ("expert.weight", "I8", &[65, 32]),
            ("streams.scale", "F32", &[3]),
        ];
        let expected = [
            found("a.scales", "U8", &[65, 2]),
            found("a.weight", "U32", &[65, 16]),
            found("expert.scales", "U8", &[65, 2]),
            found("expert.weight", "U32", &[65, 8]),
            found("streams.scale", "F32", &[3]),
        ];
        assert_eq!(converted(OriginalFormat::Tiles, &stored), expected);
    }

    #[test]
    fn packed_integers_get_biases() {
        let stored = [
            ("a.weight_packed", "I32", &[6, 8][..]),
            ("a.weight_scale", "BF16", &[6, 2]),
            ("a.weight_shape", "I64", &[2]),
            ("b.weight", "BF16", &[6, 64]),
            ("c.weight_packed", "F32", &[]),
            ("c.weight_scale", "F32", &[]),
        ];
        let expected = [
            found("a.biases", "BF16", &[6, 2]),
            found("a.scales", "BF16", &[6, 2]),
            found("a.weight", "U32", &[6, 8]),
            found("b.weight", "BF16", &[6, 64]),
            found("c.biases", "F32", &[]),
            found("c.scales", "F32", &[]),
            found("c.weight", "F32", &[]),
        ];
        assert_eq!(converted(OriginalFormat::Int4 { group_size: Some(32) }, &stored), expected);
    }

    fn columns(order: ColumnOrder, group_size: Option<u64>) -> OriginalFormat {
        OriginalFormat::Columns(ColumnFormat { order, bits: 4, group_size, zero_offset: 0 })
    }

    #[test]
    fn columns_become_rows() {
        let norm = ("norm.weight", "F16", &[64][..]);
        let [zeros, scales] = [("a.qzeros", "I32", &[2, 3][..]), ("a.scales", "F16", &[2, 24])];
        let order = ("a.g_idx", "I32", &[64][..]);
        let awq = [norm, zeros, scales, ("a.qweight", "I32", &[64, 3])];
        let gptq = [norm, zeros, scales, order, ("a.qweight", "I32", &[8, 24])];
        let expected = [
            found("a.biases", "F16", &[24, 2]),
            found("a.scales", "F16", &[24, 2]),
            found("a.weight", "U32", &[24, 8]),
            found("norm.weight", "F16", &[64]),
        ];
        assert_eq!(converted(columns(ColumnOrder::Awq, Some(32)), &awq), expected);
        assert_eq!(converted(columns(ColumnOrder::Gptq, None), &gptq), expected);
        let names = ["a.g_idx", "a.qweight", "a.qzeros", "a.scales"].map(|it| (it, "F32", &[][..]));
        let names = converted(columns(ColumnOrder::Gptq, Some(32)), &names).into_iter();
        let names: Vec<String> = names.map(|(name, _, _)| name).collect();
        assert_eq!(names, ["a.biases", "a.scales", "a.weight"]);
    }

    #[test]
    fn columns_of_other_dimensions_are_left_for_the_check_to_refuse() {
        type Stored = [(&'static str, &'static str, &'static [usize]); 4];
        let stored: Stored = [
            ("a.g_idx", "I32", &[64]),
            ("a.qweight", "I32", &[8, 24]),
            ("a.qzeros", "I32", &[2, 3]),
            ("a.scales", "F16", &[2, 24]),
        ];
        let refused = |idx: usize, element_type: &'static str, shape: &'static [usize]| {
            let mut other = stored;
            (other[idx].1, other[idx].2) = (element_type, shape);
            let expected =
                other.map(|(name, element_type, shape)| found(name, element_type, shape));
            let found = converted(columns(ColumnOrder::Gptq, None), &other);
            assert_eq!(found, expected);
        };
        refused(0, "I32", &[32]);
        refused(1, "F32", &[8, 24]);
        refused(1, "I32", &[8, 23]);
        refused(1, "I32", &[192]);
        refused(2, "I32", &[1, 3]);
        refused(3, "I32", &[2, 24]);
        refused(3, "F16", &[0, 24]);
        refused(3, "F16", &[3, 24]);
        let others = converted(columns(ColumnOrder::Gptq, Some(64)), &stored);
        assert_eq!(others.len(), 4, "groups of 32 inputs");
        assert_eq!(converted(columns(ColumnOrder::Awq, None), &stored).len(), 4, "another order");
        // Zero points are missing.
        let without = [stored[1], stored[3]];
        assert_eq!(converted(columns(ColumnOrder::Gptq, None), &without).len(), 2);
        // The matrix is there twice.
        let [order, codes, zeros, scales] = stored;
        let twice = [order, codes, zeros, scales, ("a.weight", "F16", &[24, 64])];
        assert_eq!(converted(columns(ColumnOrder::Gptq, None), &twice).len(), 5);
    }

    #[test]
    fn factors_of_blocks_matrices_and_experts_are_applied() {
        let stored = [
            ("a.weight", "F8_E4M3", &[130, 257][..]),
            ("a.weight_scale_inv", "F32", &[2, 3]),
            ("b.activation_scale", "BF16", &[]),
            ("b.weight", "F8_E4M3", &[5, 7]),
            ("b.weight_scale_inv", "BF16", &[]),
            ("experts.gate_up_proj", "F8_E4M3", &[4, 6, 8]),
            ("experts.gate_up_proj_scale_inv", "BF16", &[4, 1, 1]),
            ("named.weight", "F32", &[]),
            ("named.weight_scale_inv", "F32", &[]),
            ("parts.down_proj", "F8_E4M3", &[4, 130, 64]),
            ("parts.down_proj_scale_inv", "BF16", &[4, 2, 1]),
        ];
        let expected = [
            found("a.weight", "BF16", &[130, 257]),
            found("b.weight", "BF16", &[5, 7]),
            found("experts.gate_up_proj", "BF16", &[4, 6, 8]),
            found("named.weight", "F32", &[]),
            found("parts.down_proj", "BF16", &[4, 130, 64]),
        ];
        assert_eq!(converted(OriginalFormat::Fp8, &stored), expected);
    }

    #[test]
    fn other_types_and_dimensions_are_left_for_the_check_to_refuse() {
        let stored = [
            ("a.weight", "BF16", &[5, 64][..]),
            ("a.weight_scale_inv", "F32", &[1, 1]),
            ("b.weight", "F8_E4M3", &[130, 130]),
            ("b.weight_scale_inv", "F32", &[2, 1]),
            ("c.weight_scale_inv", "F32", &[1, 1]),
            // A factor for each row, and a block for each expert of three.
            ("d.weight", "F8_E4M3", &[384, 64]),
            ("d.weight_scale_inv", "F32", &[384, 1]),
            ("e.weight", "F8_E4M3", &[4, 130, 64]),
            ("e.weight_scale_inv", "F32", &[3, 2, 1]),
        ];
        let expected = stored.map(|(name, element_type, shape)| found(name, element_type, shape));
        assert_eq!(converted(OriginalFormat::Fp8, &stored), expected);
        let stored = [
            ("a.biases", "BF16", &[6, 2][..]),
            ("a.weight_packed", "I32", &[6, 8]),
            ("a.weight_scale", "BF16", &[6, 2]),
        ];
        let expected = stored.map(|(name, element_type, shape)| found(name, element_type, shape));
        assert_eq!(converted(OriginalFormat::Int4 { group_size: None }, &stored), expected);
        // Scales for 32 columns, where the configuration says 64.
        let stored = [("a.weight_packed", "I32", &[6, 8][..]), ("a.weight_scale", "BF16", &[6, 2])];
        let expected = stored.map(|(name, element_type, shape)| found(name, element_type, shape));
        assert_eq!(converted(OriginalFormat::Int4 { group_size: Some(64) }, &stored), expected);
        let tiles = [("a.weight", "U8", &[64, 64][..]), ("a.weight_scale_inv", "U8", &[2, 2])];
        let expected = [found("a.scales", "U8", &[2, 2]), found("a.weight", "U32", &[64, 16])];
        assert_eq!(converted(OriginalFormat::Mxfp8, &tiles), expected);
        let stored = [("a.weight", "BF16", &[5, 64][..]), ("a.weight_scale_inv", "F32", &[1, 1])];
        let expected = [found("a.scales", "F32", &[1, 1]), found("a.weight", "BF16", &[5, 64])];
        assert_eq!(converted(OriginalFormat::Mxfp8, &stored), expected);
    }
}
