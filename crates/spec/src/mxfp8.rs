//! Originals in MXFP8. Their codes and scales have the same bytes as MLX's, under other names and as elements of
//! other types.

use std::collections::BTreeMap;

use crate::tensor::{ElementType, TensorHeader};

/// Ending of the names of scales in originals.
const SCALES: &str = ".weight_scale_inv";

/// Number of codes in a word of MLX's.
const CODES_PER_WORD: usize = 4;

/// Gives tensors of originals the names and types of conversions. `header` returns the header of a tensor,
/// without dimensions if only its name is known.
pub fn as_converted<T>(
    stored: BTreeMap<String, T>,
    header: impl Fn(&mut T) -> &mut TensorHeader,
) -> BTreeMap<String, T> {
    let modules = stored.keys().filter_map(|name| name.strip_suffix(SCALES).map(str::to_owned));
    let modules: Vec<String> = modules.collect();
    let mut tensors = stored;
    for module in modules {
        let mut scales = tensors.remove(&format!("{module}{SCALES}")).expect("the name was listed");
        let of_scales = header(&mut scales);
        if is_one_of(&of_scales.element_type, &["U8", "F8_E8M0"]) {
            of_scales.element_type = ElementType::U8;
        }
        tensors.insert(format!("{module}.scales"), scales);
        let Some(codes) = tensors.get_mut(&format!("{module}.weight")) else { continue };
        let of_codes = header(codes);
        let is_of_bytes = is_one_of(&of_codes.element_type, &["U8", "F8_E4M3"]);
        if let Some(last) = of_codes.shape.last_mut()
            && is_of_bytes
            && last.is_multiple_of(CODES_PER_WORD)
        {
            *last /= CODES_PER_WORD;
            of_codes.element_type = ElementType::U32;
        }
    }
    tensors
}

fn is_one_of(element_type: &ElementType, names: &[&str]) -> bool {
    names.contains(&element_type.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(stored: &[(&str, &str, &[usize])]) -> Vec<(String, String, Vec<usize>)> {
        let header = |element_type: &str, shape: &[usize]| TensorHeader {
            element_type: ElementType::from_name(element_type),
            shape: shape.to_vec(),
        };
        let stored = stored.iter().map(|(name, it, shape)| ((*name).to_owned(), header(it, shape)));
        let tensors = as_converted(stored.collect(), |header| header).into_iter();
        tensors.map(|(name, it)| (name, it.element_type.name().to_owned(), it.shape)).collect()
    }

    #[test]
    fn codes_and_scales_become_those_of_conversions() {
        let words = ("a.weight".to_owned(), "U32".to_owned(), vec![5, 16]);
        let scales = ("a.scales".to_owned(), "U8".to_owned(), vec![5, 2]);
        let norm = ("norm.weight".to_owned(), "BF16".to_owned(), vec![64]);
        for [codes, of_scales] in [["F8_E4M3", "F8_E8M0"], ["U8", "U8"]] {
            let found = converted(&[
                ("a.weight", codes, &[5, 64]),
                ("a.weight_scale_inv", of_scales, &[5, 2]),
                ("norm.weight", "BF16", &[64]),
            ]);
            assert_eq!(found, [scales.clone(), words.clone(), norm.clone()]);
        }
    }

    #[test]
    fn other_types_are_left_for_the_check_to_refuse() {
        let found = converted(&[
            ("a.weight", "BF16", &[5, 64]),
            ("a.weight_scale_inv", "F32", &[1, 1]),
            ("b.weight_scale_inv", "U8", &[]),
        ]);
        let names: Vec<[&str; 2]> = found.iter().map(|it| [&it.0[..], &it.1]).collect();
        assert_eq!(names, [["a.scales", "F32"], ["a.weight", "BF16"], ["b.scales", "U8"]]);
    }
}
