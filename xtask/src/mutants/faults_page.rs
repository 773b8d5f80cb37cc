//! Compares the mutations with the page of faults and attacks, whose rows name them in their last
//! cell, beside the tests that must find them.

use super::mutation::Mutation;

/// The page.
pub(super) const FAULTS: &str = "docs/faults.md";

/// Checks that each row names mutations that exist, or says why it has none; that each mutation has
/// a row; and that its rows name all of its tests.
pub(super) fn check(page: &str, mutations: &[Mutation], findings: &mut Vec<String>) {
    let attacks: Vec<&Mutation> = mutations.iter().filter(|it| !it.is_searched()).collect();
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| Fault"));
    let rows: Vec<(&str, &str)> = rows.filter_map(last_cell).collect();
    for (row, cell) in &rows {
        if cell.is_empty() {
            findings.push(format!("{FAULTS}: no mutation, and no reason why, in: {row}"));
        }
        for name in cell.split('`').skip(1).step_by(2) {
            if attacks.iter().all(|it| it.name != name) {
                findings.push(format!("{FAULTS}: there is no mutation {name}"));
            }
        }
    }
    for mutation in attacks {
        let named = format!("`{}`", mutation.name);
        let rows: Vec<&str> =
            rows.iter().filter(|(_, cell)| cell.contains(&named)).map(|(row, _)| *row).collect();
        if rows.is_empty() {
            findings.push(format!("{FAULTS}: no row names the mutation {}", mutation.name));
        }
        for test in mutation.tests().map(|it| format!("`{it}`")) {
            if rows.iter().any(|row| !row.contains(&test)) {
                findings.push(format!("{FAULTS}: a row of {} does not name {test}", mutation.name));
            }
        }
    }
}

/// Returns a row, and its last cell.
fn last_cell(line: &str) -> Option<(&str, &str)> {
    let cell = line.trim_end().strip_suffix('|')?.rsplit('|').next()?;
    Some((line, cell.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_and_mutations_name_each_other() {
        let mutations = Mutation::load_all().unwrap();
        let attack = mutations.iter().find(|it| !it.is_searched()).unwrap();
        let tests: String = attack.tests().map(|it| format!("`{it}`, ")).collect();
        let found = |row: &str| {
            let mut findings = Vec::new();
            check(&format!("| Fault | x |\n{row}\n"), &mutations, &mut findings);
            let about = findings.into_iter().filter(|it| {
                !it.contains("no row names") || it.ends_with(&format!(" {}", attack.name))
            });
            about.collect::<Vec<String>>()
        };
        let name = &attack.name;
        assert_eq!(found(&format!("| a | b | {tests} | `{name}` |")), [""; 0]);
        let missing = found("| a | b | `c` | |");
        assert!(missing.len() == 2 && missing[0].contains("no reason"), "{missing:?}");
        assert!(found(&format!("| a | b | c | `{name}` |"))[0].contains("does not name"));
        assert!(found("| a | b | c | `nothing` |")[0].contains("no mutation nothing"));
    }
}
