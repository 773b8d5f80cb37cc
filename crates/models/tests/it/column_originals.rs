//! Originals of AutoAWQ and GPTQ, whose matrices have inputs in rows, and conversions with the same values.

use std::collections::BTreeMap;

use half::f16;
use serde_json::{Value, json};

use crate::quantized_originals::{check_same_bits, write};
use crate::recipe::{Case, Golden, Tensor};

/// Where AutoAWQ's words of 4 bits have the codes of eight outputs.
const AWQ_PLACES: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// A matrix of codes.
struct Codes {
    bits: usize,
    inputs: usize,
    outputs: usize,
    groups: usize,
    /// Codes `[outputs, inputs]`.
    codes: Vec<u32>,
    /// Zero points, `[groups, outputs]`.
    zeros: Vec<u32>,
    /// Scales of F16, `[groups, outputs]`.
    scales: Vec<f16>,
}

fn tensor(dtype: &str, shape: [usize; 2], bytes: Vec<u8>) -> Tensor {
    Tensor { dtype: dtype.to_owned(), shape: shape.map(|dim| dim as u64).to_vec(), bytes }
}

fn words(tensor: &Tensor) -> Vec<u32> {
    tensor.bytes.as_chunks().0.iter().map(|it| u32::from_le_bytes(*it)).collect()
}

/// Packs codes that follow one another.
fn packed(codes: impl Iterator<Item = u32>, bits: usize) -> Vec<u8> {
    let codes: Vec<u32> = codes.collect();
    let word = |codes: &[u32]| {
        codes.iter().enumerate().fold(0, |word, (idx, code)| word | code << (idx * bits))
    };
    codes.chunks(32 / bits).flat_map(|codes| word(codes).to_le_bytes()).collect()
}

impl Codes {
    /// Reads the tensors of AutoAWQ.
    fn of_awq(stored: &BTreeMap<String, Tensor>, module: &str) -> Codes {
        let find = |kind: &str| &stored[&format!("{module}.{kind}")];
        let [code_words, zero_words] = ["qweight", "qzeros"].map(|kind| words(find(kind)));
        let scales = find("scales");
        let dim = |tensor: &Tensor, axis: usize| tensor.shape[axis] as usize;
        let (inputs, groups, outputs) = (dim(find("qweight"), 0), dim(scales, 0), dim(scales, 1));
        let code = |words: &[u32], row: usize, output: usize| {
            let word = words[row * outputs / 8 + output / 8];
            word >> (4 * AWQ_PLACES[output % 8]) & 15
        };
        Codes {
            bits: 4,
            inputs,
            outputs,
            groups,
            codes: (0..outputs * inputs)
                .map(|idx| code(&code_words, idx % inputs, idx / inputs))
                .collect(),
            zeros: (0..groups * outputs)
                .map(|idx| code(&zero_words, idx / outputs, idx % outputs))
                .collect(),
            scales: scales.bytes.as_chunks().0.iter().map(|it| f16::from_le_bytes(*it)).collect(),
        }
    }

    /// Makes a matrix with groups of 32 inputs.
    fn made(bits: usize, [outputs, inputs]: [usize; 2]) -> Codes {
        let groups = inputs / 32;
        let mut state = 1_u32;
        let mut next = |limit: u32| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) % limit
        };
        let scale = 0.5 / f32::from(1_u16 << bits);
        Codes {
            bits,
            inputs,
            outputs,
            groups,
            codes: (0..outputs * inputs).map(|_| next(1 << bits)).collect(),
            zeros: (0..groups * outputs).map(|_| next(1 << bits)).collect(),
            scales: (0..groups * outputs)
                .map(|_| f16::from_f32(scale * (1 + next(8)) as f32 / 8.0))
                .collect(),
        }
    }

    /// Returns the tensors of a conversion.
    fn converted(&self) -> [(&'static str, Tensor); 3] {
        let Codes { bits, inputs, outputs, groups, .. } = *self;
        let at = |idx: usize| idx % groups * outputs + idx / groups;
        let halves = |value: &dyn Fn(usize) -> f16| {
            let bytes = (0..outputs * groups).flat_map(|idx| value(at(idx)).to_le_bytes());
            tensor("F16", [outputs, groups], bytes.collect())
        };
        let bias =
            |idx: usize| f16::from_f32(-(self.zeros[idx] as f32) * self.scales[idx].to_f32());
        let codes = packed(self.codes.iter().copied(), bits);
        [
            ("weight", tensor("U32", [outputs, inputs * bits / 32], codes)),
            ("scales", halves(&|idx| self.scales[idx])),
            ("biases", halves(&bias)),
        ]
    }

    fn stored_scales(&self) -> Tensor {
        let bytes = self.scales.iter().flat_map(|it| it.to_le_bytes());
        tensor("F16", [self.groups, self.outputs], bytes.collect())
    }

    /// Returns the tensors of AutoAWQ.
    fn awq(&self) -> Vec<(&'static str, Tensor)> {
        let Codes { inputs, outputs, groups, .. } = *self;
        let output =
            |idx: usize| idx / 8 * 8 + AWQ_PLACES.iter().position(|it| *it == idx % 8).unwrap();
        let codes = (0..inputs * outputs)
            .map(|idx| self.codes[output(idx % outputs) * inputs + idx / outputs]);
        let zeros = (0..groups * outputs)
            .map(|idx| self.zeros[idx / outputs * outputs + output(idx % outputs)]);
        vec![
            ("qweight", tensor("I32", [inputs, outputs / 8], packed(codes, 4))),
            ("qzeros", tensor("I32", [groups, outputs / 8], packed(zeros, 4))),
            ("scales", self.stored_scales()),
        ]
    }

    /// Returns the tensors of GPTQ; `offset` is subtracted from the zero points.
    fn gptq(&self, offset: u32) -> Vec<(&'static str, Tensor)> {
        let Codes { bits, inputs, outputs, groups, .. } = *self;
        let per_word = 32 / bits;
        let in_words = packed(self.codes.iter().copied(), bits);
        let in_words = words(&tensor("I32", [outputs, inputs / per_word], in_words));
        let turned = (0..in_words.len()).flat_map(|idx| {
            in_words[idx % outputs * (inputs / per_word) + idx / outputs].to_le_bytes()
        });
        let zeros = self.zeros.iter().map(|zero| zero.wrapping_sub(offset) & ((1 << bits) - 1));
        let order = (0..inputs).flat_map(|input| ((input * groups / inputs) as u32).to_le_bytes());
        vec![
            ("qweight", tensor("I32", [inputs / per_word, outputs], turned.collect())),
            ("qzeros", tensor("I32", [groups, outputs / per_word], packed(zeros, bits))),
            ("scales", self.stored_scales()),
            (
                "g_idx",
                Tensor {
                    dtype: "I32".to_owned(),
                    shape: vec![inputs as u64],
                    bytes: order.collect(),
                },
            ),
        ]
    }
}

/// Makes an original and a conversion of it from a case, in which `codes_of` returns the codes of some matrices.
fn check(
    case: &Case,
    stated: Value,
    codes_of: impl Fn(&str, &Tensor) -> Option<Codes>,
    pack: impl Fn(&Codes) -> Vec<(&'static str, Tensor)>,
) {
    let (mut original, mut conversion) = (BTreeMap::new(), BTreeMap::new());
    let (mut num_codes, mut bits) = (0, 0);
    for name in case.tensors.keys() {
        let stored = case.tensor(name);
        let Some(codes) = codes_of(name, &stored) else {
            original.insert(name.clone(), stored.clone());
            conversion.insert(name.clone(), stored);
            continue;
        };
        (num_codes, bits) = (num_codes + 1, codes.bits);
        let module = name.strip_suffix(".weight").unwrap();
        let named = |(kind, tensor)| (format!("{module}.{kind}"), tensor);
        original.extend(pack(&codes).into_iter().map(named));
        conversion.extend(codes.converted().into_iter().map(named));
    }
    assert_ne!(num_codes, 0, "{}: no matrix is quantised", case.name);
    let name = format!("{}, {stated}", case.name);
    let original = write(case, Some(stated), original);
    let conversion = write(case, Some(json!({"bits": bits, "group_size": 32})), conversion);
    check_same_bits(&name, &original, &conversion);
}

/// Makes codes of all matrices of layers, or of experts only.
fn made(bits: usize) -> impl Fn(&str, &Tensor) -> Option<Codes> {
    move |name, tensor| match tensor.shape[..] {
        [outputs, inputs] if name.contains(".mlp.") && !name.contains("mlp.gate.") => {
            Some(Codes::made(bits, [outputs as usize, inputs as usize]))
        }
        _ => None,
    }
}

#[test]
fn awq_and_gptq_compute_the_bits_of_conversions() {
    let golden = Golden::read();
    for case in golden.chosen(&["qwen3-f16", "qwen3_moe-per-expert-f32"]) {
        let stated = |method: &str, bits: usize, more: Value| {
            let mut stated = json!({"quant_method": method, "bits": bits, "group_size": 32});
            stated.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            stated
        };
        check(case, stated("awq", 4, json!({"version": "GEMM"})), made(4), Codes::awq);
        let v1 = json!({"desc_act": false, "sym": false});
        check(case, stated("gptq", 4, v1.clone()), made(4), |codes| codes.gptq(1));
        check(case, stated("gptq", 8, v1), made(8), |codes| codes.gptq(1));
        let v2 = json!({"checkpoint_format": "gptq_v2"});
        check(case, stated("gptq", 4, v2), made(4), |codes| {
            codes.gptq(0).into_iter().filter(|(kind, _)| *kind != "g_idx").collect()
        });
    }
}

/// Returns what a conversion of a matrix of AutoAWQ has.
pub(crate) fn of_awq(
    stored: &BTreeMap<String, Tensor>,
    module: &str,
) -> [(&'static str, Tensor); 3] {
    Codes::of_awq(stored, module).converted()
}
