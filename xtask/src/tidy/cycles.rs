//! Import cycles between the files of a crate.
//!
//! A file uses another if it declares it (`mod b;`), or if a path in it, in a `use` or in code,
//! names something that the other defines; imports of imports are followed to the definition. A
//! file and the modules below it are one room as long as these name it by `super::`: such a path
//! from a child to a file above it counts as no use, since the child is a part of what it names.
//! Every other path does, `super::sibling::X` and `super::X` for an `X` that the parent only imports
//! included. Files are on a cycle if each uses the other, directly or through others. Tests, in
//! `#[cfg(test)]` or below `tests/`, may use what they like.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::modules::{Mention, Modules};

/// Files that use each other.
#[derive(Debug, Eq, PartialEq)]
pub(super) struct Cycle {
    /// Number of files from each of which each other can be reached.
    pub(super) num_files: usize,
    /// One way around the cycle, with the line that makes each step.
    pub(super) example: String,
}

/// For each file the files that it uses, each with the number of a line that uses it.
type Uses = BTreeMap<usize, BTreeMap<usize, usize>>;

fn uses(modules: &Modules) -> Uses {
    let mut uses = Uses::new();
    for (idx, file) in modules.files.iter().enumerate() {
        if let Some((_, above)) = file.module.split_last()
            && let Some(parent) = modules.resolve(above, &[])
        {
            uses.entry(parent).or_default().entry(idx).or_insert(0);
        }
    }
    for mention in &modules.mentions {
        let here = modules.resolve(&mention.module, &[]);
        let there = modules.resolve(&mention.module, &mention.path);
        let (Some(here), Some(there)) = (here, there) else { continue };
        if here != there && !is_within_room(modules, mention, there) {
            uses.entry(here).or_default().entry(there).or_insert(mention.line);
        }
    }
    uses
}

/// Whether a path names, by `super::`, what a file above it defines.
fn is_within_room(modules: &Modules, mention: &Mention, there: usize) -> bool {
    let above = &modules.files[there].module;
    mention.path.first().is_some_and(|it| it == "super") && mention.module.starts_with(above)
}

/// All cycles of a crate.
pub(super) fn find(modules: &Modules) -> Vec<Cycle> {
    let uses = uses(modules);
    let reach: Vec<BTreeSet<usize>> =
        (0..modules.files.len()).map(|from| reachable(&uses, from)).collect();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for from in 0..modules.files.len() {
        let around: BTreeSet<usize> =
            reach[from].iter().copied().filter(|&to| reach[to].contains(&from)).collect();
        if around.is_empty() || !seen.insert(around.clone()) {
            continue;
        }
        let example = example(modules, &uses, from);
        found.push(Cycle { num_files: around.len(), example });
    }
    found
}

fn reachable(uses: &Uses, from: usize) -> BTreeSet<usize> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        let next = uses.get(&file).into_iter().flat_map(BTreeMap::keys);
        open.extend(next.copied().filter(|&it| reached.insert(it)));
    }
    reached
}

/// The shortest way from a file back to itself.
fn example(modules: &Modules, uses: &Uses, from: usize) -> String {
    let mut came_from: BTreeMap<usize, (usize, usize)> = BTreeMap::new();
    let mut open = VecDeque::from([from]);
    while let Some(file) = open.pop_front() {
        for (&to, &line) in uses.get(&file).into_iter().flatten() {
            came_from.entry(to).or_insert_with(|| {
                open.push_back(to);
                (file, line)
            });
        }
    }
    let mut steps = Vec::new();
    let mut here = from;
    while let Some(&(before, line)) = came_from.get(&here) {
        let name = modules.name_of(before);
        steps.push(if line == 0 { name } else { format!("{name}:{line}") });
        here = before;
        if here == from {
            break;
        }
    }
    steps.reverse();
    steps.join(" → ")
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The cycles of a crate of these files, each as the number of its files.
    fn sizes(name: &str, files: &[(&str, &str)]) -> Vec<usize> {
        let dir = crate::process::target_dir().join("tidy-tests").join(name);
        for (path, text) in files {
            let path = dir.join("src").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let modules = Modules::read(&dir.join("src/lib.rs")).unwrap();
        find(&modules).iter().map(|it| it.num_files).collect()
    }

    #[test]
    fn a_child_may_use_its_parent_but_not_in_a_circle_with_a_sibling() {
        let room = [
            ("lib.rs", "mod a;"),
            ("a.rs", "mod b; mod c; struct X; fn f() { b::g(); c::h(); }"),
            ("a/b.rs", "use super::X; pub(super) fn g() {}"),
        ];
        let alone = ("a/c.rs", "use super::X; use super::b::g; pub(super) fn h() {}");
        assert_eq!(sizes("room", &[room[0], room[1], room[2], alone]), Vec::<usize>::new());
        let back = ("a/b.rs", "fn g() { vec![super::c::h()]; }");
        assert_eq!(sizes("sibling", &[room[0], room[1], back, alone]), [2]);
    }

    #[test]
    fn an_import_of_an_import_is_followed() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use a::*; pub use b::{Y as Z, self};"),
            ("a.rs", "use crate::Z; pub struct X;"),
            ("b.rs", "pub struct Y(crate::X);"),
        ];
        assert_eq!(sizes("import", &files), [2]);
    }

    #[test]
    fn a_path_from_the_root_is_a_use_of_what_is_above() {
        let files = [("lib.rs", "mod a; const N: u8 = 0;"), ("a.rs", "fn f() { g(crate::N) }")];
        assert_eq!(sizes("root", &files), [2]);
        let files = [("lib.rs", "mod a; const N: u8 = 0;"), ("a.rs", "fn f() { g(super::N) }")];
        assert_eq!(sizes("above", &files), Vec::<usize>::new());
        let lib = ("lib.rs", "mod a; mod b; pub use b::X; fn f() -> &'static X { a::f() }");
        let files = [lib, ("a.rs", "use crate::X;"), ("b.rs", "pub struct X;")];
        assert_eq!(sizes("lifetime", &files), Vec::<usize>::new());
        let lib = ("lib.rs", "mod a; mod b; pub use b::{X, Y,};");
        let files = [lib, ("a.rs", "use crate::{X, Y,};"), ("b.rs", "pub struct X; pub struct Y;")];
        assert_eq!(sizes("comma", &files), Vec::<usize>::new());
    }

    #[test]
    fn tests_may_use_what_they_like() {
        let files = [
            ("lib.rs", "mod a; mod b; #[cfg(test)] mod t;"),
            ("a.rs", "use crate::b::Y; pub struct X; #[cfg(test)] mod tests { fn f() {} }"),
            (
                "b.rs",
                "pub struct Y; #[cfg(test)] use crate::a::X; #[cfg(test)] mod tests { use crate::a::X; }",
            ),
        ];
        assert_eq!(sizes("tests", &files), Vec::<usize>::new());
    }
}
