//! What the cables form. Clusters of this kind have few machines, so that trying all orders is fine;
//! beyond [`ORDERED_MAX`] machines only meshes and trees are told apart.

use super::Cabling;

/// Rings and chains are looked for among so many machines: 7! orders at most.
const ORDERED_MAX: usize = 8;

/// What the cables form.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Shape {
    /// One machine.
    Alone,
    /// Each with each.
    Mesh,
    /// A circle, in this order.
    Ring(Vec<usize>),
    /// A line, in this order.
    Chain(Vec<usize>),
    /// All are joined somehow.
    Tree,
    /// Some are not joined: the groups.
    Apart(Vec<Vec<usize>>),
}

impl Shape {
    /// Finds it.
    pub fn of(cabling: &Cabling) -> Shape {
        let num_hosts = cabling.hosts.len();
        if num_hosts <= 1 {
            return Shape::Alone;
        }
        if cabling.missing_pairs().is_empty() {
            return Shape::Mesh;
        }
        let groups = groups(cabling);
        if 1 < groups.len() {
            return Shape::Apart(groups);
        }
        if num_hosts <= ORDERED_MAX {
            if let Some(order) = path(cabling, &mut vec![0], true) {
                return Shape::Ring(order);
            }
            let chain = (0..num_hosts).find_map(|first| path(cabling, &mut vec![first], false));
            if let Some(order) = chain {
                return Shape::Chain(order);
            }
        }
        Shape::Tree
    }

    /// What people call it.
    pub fn name(&self) -> &'static str {
        match self {
            Shape::Alone => "one machine",
            Shape::Mesh => "a full mesh",
            Shape::Ring(_) => "a ring",
            Shape::Chain(_) => "a chain",
            Shape::Tree => "a tree",
            Shape::Apart(_) => "several pieces",
        }
    }
}

/// Machines that cables join, directly or over others.
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

/// Goes on from the last of `path` through all machines, and back to the first if it shall be closed.
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
