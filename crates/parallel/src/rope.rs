//! Rotary position embedding (Su et al. 2021) with the context extensions that checkpoints use.

use std::cell::RefCell;
use std::rc::Rc;

use jackalope_kernels::{Angles, RotationTable};
use jackalope_mlx::{Array, dim, fast};
use jackalope_spec::RopeSpec;

/// The rotations of a model. Layers with the same description share one, whose table a step computes
/// once.
#[derive(Debug, Default)]
pub struct Ropes(RefCell<Vec<KnownRope>>);

/// The rotations of a description.
#[derive(Debug)]
struct KnownRope {
    spec: RopeSpec,
    place: RopePlace,
    rope: Rc<Rope>,
}

/// Which elements of a head are rotated, and in which direction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RopePlace {
    /// Number of elements before those that are rotated; even, and 0 unless neighbours are a pair.
    pub first: usize,
    /// Whether heads are rotated back.
    pub is_inverse: bool,
}

impl Ropes {
    /// Returns the rotations of a description.
    pub fn of(&self, spec: &RopeSpec) -> Rc<Rope> {
        self.at(spec, RopePlace::default())
    }

    /// Returns the rotations of a description, of other elements or in the other direction.
    pub fn at(&self, spec: &RopeSpec, place: RopePlace) -> Rc<Rope> {
        let mut known = self.0.borrow_mut();
        if let Some(it) = known.iter().find(|it| it.spec == *spec && it.place == place) {
            return Rc::clone(&it.rope);
        }
        let rope = Rc::new(Rope::new(spec, place));
        known.push(KnownRope { spec: spec.clone(), place, rope: Rc::clone(&rope) });
        rope
    }
}

/// Rotates heads by their position.
#[derive(Debug)]
pub struct Rope {
    /// Number of elements of a head that are rotated, the first ones.
    dims: usize,
    is_traditional: bool,
    /// Radians per position, for each pair of elements.
    radians: Vec<f64>,
    /// Factor by which rotated elements are multiplied.
    magnitude: f64,
    /// Positions per radian, for MLX.
    freqs: Array, // [dims / 2] f32
}

impl Rope {
    fn new(spec: &RopeSpec, RopePlace { first, is_inverse }: RopePlace) -> Rope {
        assert!(first == 0 || spec.is_traditional, "elements before neighbours that are a pair");
        let (own, magnitude) = spec.periods();
        assert!(first == 0 || magnitude == 1.0, "all elements would be multiplied");
        // Pairs with an infinite period are not rotated.
        let still = std::iter::repeat_n(f64::INFINITY, first / 2);
        let own = own.into_iter().map(|period| if is_inverse { -period } else { period });
        let periods: Vec<f64> = still.chain(own).collect();
        let freqs: Vec<f32> = periods.iter().map(|&period| period as f32).collect();
        Rope {
            dims: first + spec.dims,
            is_traditional: spec.is_traditional,
            radians: periods.iter().map(|period| 1.0 / period).collect(),
            magnitude,
            freqs: Array::from_slice(&freqs, &[dim(freqs.len())]),
        }
    }

    /// Computes cosines and sines for the rows of a step at `positions`.
    pub fn table(&self, positions: impl Iterator<Item = usize>) -> RotationTable {
        let Rope { is_traditional, magnitude, .. } = *self;
        RotationTable::new(&self.radians, magnitude, is_traditional, positions)
    }

    /// Rotates the first elements of each head with MLX: `x` and the result are `[tokens, heads, 1, …]`,
    /// `positions` `[tokens]` i32.
    pub fn stock(&self, x: &Array, positions: &Array) -> Array {
        if self.dims == 0 {
            return x.clone();
        }
        let scaled = if self.magnitude == 1.0 { x.clone() } else { x.mul(&self.factors(x)) };
        let rope = fast::RopeParameters {
            dims: dim(self.dims),
            traditional: self.is_traditional,
            freqs: &self.freqs,
            positions,
        };
        fast::rope(&scaled, rope)
    }

    /// Returns what rotates single heads.
    pub fn angles(&self) -> Angles {
        Angles::new(&self.radians, self.magnitude, self.is_traditional)
    }

    /// Returns the factor of each element of a head of `x`, `[head_dim]`: only those that are
    /// rotated are multiplied.
    fn factors(&self, x: &Array) -> Array {
        let head_dim = x.dim(-1);
        let mut factors = vec![1.0; head_dim as usize];
        factors[..self.dims].fill(self.magnitude as f32);
        Array::from_slice(&factors, &[head_dim]).astype(x.dtype())
    }
}
