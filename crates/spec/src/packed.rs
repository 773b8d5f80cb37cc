//! Checkpoints that store the expert that every token passes as the last of the others, and gate and up of an
//! expert in one matrix: mlx-vlm's conversions of MiniMax M3. The model finds its tensors as if each
//! expert had its own: a part of a stored tensor is one run of bytes.

use std::collections::BTreeMap;

/// Maximum number of parts of all tensors. The published MiniMax M3 has 65,000 in 4 bits.
const PARTS_MAX: usize = 1 << 19;

/// Names of the tensors of packed experts, below their block, and of those that they stand for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PackedExperts {
    /// Number of experts that a router chooses from.
    pub num_experts: usize,
    /// Module with gate and up of all experts, `[experts, 2 * inner, input]`.
    pub gate_up: &'static str,
    /// Module with the down projections of all experts, `[experts, output, inner]`.
    pub down: &'static str,
    /// Module of the experts with tensors of their own.
    pub each: &'static str,
    /// Their gate, up and down projections.
    pub projections: [&'static str; 3],
    /// Module of the expert that every token passes.
    pub shared: &'static str,
    /// Its gate, up and down projections.
    pub shared_projections: [&'static str; 3],
}

/// A stored tensor of all experts, as its name describes it.
struct PackedTensor<'n> {
    /// The block of experts.
    block: &'n str,
    /// `weight`, `scales` or `biases`.
    kind: &'n str,
    /// The projections that it has of each expert.
    projections: &'static [usize],
}

/// A projection of one expert in a stored tensor, which has parts of the same size only.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PackedPart {
    /// Name of the tensor that it stands for.
    pub name: String,
    /// Dimensions of that tensor.
    pub shape: Vec<usize>,
    /// Index among the parts of the stored tensor, in the order of its bytes.
    pub idx: usize,
    /// Number of these parts.
    pub num_parts: usize,
}

impl PackedExperts {
    /// Replaces stored tensors by their parts. `shape` returns a tensor's dimensions, none if only its name is
    /// known; `take` returns a part. Tensors with more than [`PARTS_MAX`] parts stay as they are.
    pub fn unpacked<T>(
        &self,
        stored: BTreeMap<String, T>,
        shape: impl Fn(&T) -> &[usize],
        take: impl Fn(&T, PackedPart) -> T,
    ) -> BTreeMap<String, T> {
        let is_packed =
            |block: &str| stored.contains_key(&format!("{block}.{}.weight", self.gate_up));
        let parts = stored.iter().filter_map(|(name, tensor)| {
            let packed = self.packed(name)?;
            let parts = self.parts(&packed, shape(tensor));
            Some((name.clone(), parts.filter(|_| is_packed(packed.block))?))
        });
        let mut num_parts = 0;
        let parts = parts.take_while(|(_, parts)| {
            num_parts += parts.len();
            num_parts <= PARTS_MAX
        });
        let parts: Vec<(String, Vec<PackedPart>)> = parts.collect();
        let mut tensors = stored;
        for (name, parts) in parts {
            let tensor = tensors.remove(&name).expect("a stored tensor has parts");
            tensors.extend(parts.into_iter().map(|part| (part.name.clone(), take(&tensor, part))));
        }
        tensors
    }

    /// Returns the tensor of this name, if it is one of all experts.
    fn packed<'n>(&self, name: &'n str) -> Option<PackedTensor<'n>> {
        let modules: [(_, &[usize]); 2] = [(self.gate_up, &[0, 1]), (self.down, &[2])];
        modules.into_iter().find_map(|(module, projections)| {
            let (block, kind) = name.split_once(&format!(".{module}."))?;
            Some(PackedTensor { block, kind, projections })
        })
    }

    /// Returns the parts of a tensor; `None` if it has another shape.
    fn parts(&self, packed: &PackedTensor<'_>, shape: &[usize]) -> Option<Vec<PackedPart>> {
        let &PackedTensor { block, kind, projections } = packed;
        let all = self.num_experts + 1;
        let (num_matrices, of_part) = match shape {
            [] => (all, Vec::new()),
            [count, rows, rest @ ..] => {
                let is_whole = rows.is_multiple_of(projections.len());
                let is_known = is_whole && (self.num_experts..=all).contains(count);
                let rows = rows / projections.len();
                is_known.then(|| (*count, [&[rows], rest].concat()))?
            }
            [_] => return None,
        };
        let num_parts = num_matrices * projections.len();
        let name = |expert: usize, projection: usize| {
            if expert < self.num_experts {
                let name = self.projections[projection];
                return format!("{block}.{}.{expert}.{name}.{kind}", self.each);
            }
            format!("{block}.{}.{}.{kind}", self.shared, self.shared_projections[projection])
        };
        let part = |idx: usize| {
            let (expert, nth) = (idx / projections.len(), idx % projections.len());
            let name = name(expert, projections[nth]);
            PackedPart { name, shape: of_part.clone(), idx, num_parts }
        };
        Some((0..num_parts).map(part).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACKED: PackedExperts = PackedExperts {
        num_experts: 2,
        gate_up: "switch_mlp.gate_up_proj",
        down: "switch_mlp.down_proj",
        each: "experts",
        projections: ["w1", "w3", "w2"],
        shared: "shared_experts",
        shared_projections: ["gate_proj", "up_proj", "down_proj"],
    };

    fn unpacked(stored: &[(&str, &[usize])]) -> Vec<(String, Vec<usize>, usize)> {
        let stored = stored.iter().map(|(name, shape)| ((*name).to_owned(), (shape.to_vec(), 0)));
        let tensors =
            PACKED.unpacked(stored.collect(), |it| &it.0, |_, part| (part.shape, part.idx));
        tensors.into_iter().map(|(name, (shape, idx))| (name, shape, idx)).collect()
    }

    #[test]
    fn each_expert_has_its_own_tensors_and_the_last_is_shared() {
        let gate_up = ("b.switch_mlp.gate_up_proj.weight", &[3, 8, 4][..]);
        let down = ("b.switch_mlp.down_proj.weight", &[3, 6, 4][..]);
        let found = unpacked(&[gate_up, down]);
        let expected = [
            ("b.experts.0.w1.weight", [4, 4], 0),
            ("b.experts.0.w2.weight", [6, 4], 0),
            ("b.experts.0.w3.weight", [4, 4], 1),
            ("b.experts.1.w1.weight", [4, 4], 2),
            ("b.experts.1.w2.weight", [6, 4], 1),
            ("b.experts.1.w3.weight", [4, 4], 3),
            ("b.shared_experts.down_proj.weight", [6, 4], 2),
            ("b.shared_experts.gate_proj.weight", [4, 4], 4),
            ("b.shared_experts.up_proj.weight", [4, 4], 5),
        ];
        let expected = expected.map(|(name, shape, idx)| (name.to_owned(), shape.to_vec(), idx));
        assert_eq!(found, expected);
    }

    #[test]
    fn other_checkpoints_and_other_shapes_stay_as_they_are() {
        let down = ("b.switch_mlp.down_proj.weight", &[2, 6, 4][..]);
        let stays = |stored: &[(&str, &[usize])]| {
            let found = unpacked(stored).into_iter().map(|it| it.0);
            let names = stored.iter().map(|it| it.0.to_owned());
            assert_eq!(found.collect::<Vec<_>>(), names.collect::<Vec<_>>());
        };
        stays(&[down]);
        for shape in [&[4, 8, 4][..], &[1, 8, 4], &[3, 7, 4], &[3]] {
            stays(&[("b.switch_mlp.gate_up_proj.weight", shape)]);
        }
        let mut stored = BTreeMap::new();
        for block in 0..PARTS_MAX {
            stored.insert(format!("{block}.switch_mlp.gate_up_proj.weight"), ());
        }
        let found = PACKED.unpacked(stored, |()| &[], |(), _| ());
        assert!(found.len() <= 2 * PARTS_MAX, "{}", found.len());
        // Without a shared expert, and by names alone.
        assert_eq!(unpacked(&[("b.switch_mlp.gate_up_proj.weight", &[2, 8, 4])]).len(), 4);
        assert_eq!(unpacked(&[("b.switch_mlp.gate_up_proj.weight", &[])]).len(), 6);
    }
}
