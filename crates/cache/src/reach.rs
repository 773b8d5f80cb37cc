//! Which positions a query sees.

/// The positions up to its own that a query sees.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Reach {
    /// Set if it sees only this number of positions, including its own.
    pub window: Option<usize>,
    /// Set if positions are in chunks of this length, of which it sees its own one only.
    pub chunk: Option<usize>,
}

impl Reach {
    /// All positions.
    pub const ALL: Reach = Reach { window: None, chunk: None };

    /// Returns the first position that the query at `position` sees.
    pub fn first(self, position: usize) -> usize {
        let of_window = self.window.map_or(0, |window| (position + 1).saturating_sub(window));
        of_window.max(self.chunk.map_or(0, |chunk| position - position % chunk))
    }
}
