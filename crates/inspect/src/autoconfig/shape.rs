//! The shape that the cables form. Clusters with cables have few machines, so that trying all
//! orders is fast enough; beyond [`ORDERED_MAX`] machines, rings and chains are not recognised.

use super::Cabling;

/// Maximum number of machines among which rings and chains are searched: 8! orders at most.
const ORDERED_MAX: usize = 8;

/// The shape that the cables form.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum CablingShape {
    /// One machine.
    Alone,
    /// Every machine is connected to every other.
    Mesh,
    /// A ring in this order.
    Ring(Vec<usize>),
    /// A chain in this order.
    Chain(Vec<usize>),
    /// All machines are connected in another way.
    Tree,
    /// Not all machines are connected; contains the connected groups.
    Apart(Vec<Vec<usize>>),
}

impl CablingShape {
    /// Determines the shape that the cables form.
    pub fn of(cabling: &Cabling) -> CablingShape {
        let num_hosts = cabling.hosts.len();
        if num_hosts <= 1 {
            return CablingShape::Alone;
        }
        if cabling.missing_pairs().is_empty() {
            return CablingShape::Mesh;
        }
        let groups = groups(cabling);
        if 1 < groups.len() {
            return CablingShape::Apart(groups);
        }
        if num_hosts <= ORDERED_MAX {
            if let Some(order) = path(cabling, &mut vec![0], true) {
                return CablingShape::Ring(order);
            }
            let chain = (0..num_hosts).find_map(|first| path(cabling, &mut vec![first], false));
            if let Some(order) = chain {
                return CablingShape::Chain(order);
            }
        }
        CablingShape::Tree
    }

    /// Returns the name of the shape.
    pub fn name(&self) -> &'static str {
        match self {
            CablingShape::Alone => "one machine",
            CablingShape::Mesh => "a full mesh",
            CablingShape::Ring(_) => "a ring",
            CablingShape::Chain(_) => "a chain",
            CablingShape::Tree => "a tree",
            CablingShape::Apart(_) => "several pieces",
        }
    }
}

/// Returns the groups of machines that are connected, directly or over others.
fn groups(cabling: &Cabling) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for host in 0..cabling.hosts.len() {
        let (mut joined, rest): (Vec<_>, Vec<_>) = groups
            .into_iter()
            .partition(|group| group.iter().any(|other| cabling.joins(*other, host)));
        groups = rest;
        let mut group: Vec<usize> = joined.drain(..).flatten().collect();
        group.push(host);
        groups.push(group);
    }
    for group in &mut groups {
        group.sort_unstable();
    }
    groups.sort();
    groups
}

/// Extends the path over all machines, and back to the first one if `is_closed`.
fn path(cabling: &Cabling, path_so_far: &mut Vec<usize>, is_closed: bool) -> Option<Vec<usize>> {
    let num_hosts = cabling.hosts.len();
    let last = *path_so_far.last()?;
    if path_so_far.len() == num_hosts {
        let is_found = !is_closed || cabling.joins(last, path_so_far[0]);
        return is_found.then(|| path_so_far.clone());
    }
    for next in 0..num_hosts {
        if !path_so_far.contains(&next) && cabling.joins(last, next) {
            path_so_far.push(next);
            if let Some(found) = path(cabling, path_so_far, is_closed) {
                return Some(found);
            }
            path_so_far.pop();
        }
    }
    None
}
